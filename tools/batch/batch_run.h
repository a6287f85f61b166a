#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/batch/batch_input.h"
#include "tools/batch/batch_output.h"
#include "tools/load/http_client.h"

namespace winnow {

struct BatchRunOptions {
  HttpClient::Options server;
  uint32_t concurrency = 16;  // requests at once
  // How often a request is sent again that the server had no room for (429), could not serve at the moment (503), or
  // did not answer. Between two attempts lies what the server asks for, at least a second and more each time.
  uint32_t retries = 8;
};

struct BatchCounts {
  size_t requests = 0;  // of the input
  size_t before = 0;    // of them, those that the output had answered already
  size_t answered = 0;  // now
  size_t failed = 0;
  uint64_t prompt_tokens = 0, completion_tokens = 0;  // as the server counted them
  std::map<std::string, size_t> failures;             // by kind: "400", "no answer"
  std::vector<std::string> first_failures;            // a few, with line and reason

  size_t left() const { return requests - before - answered - failed; }
};

// Sends what the output has no answer to. It begins at once, in threads of its own.
class BatchRun {
 public:
  // Both must outlive it.
  BatchRun(const BatchRunOptions& options, BatchInput* input, BatchOutput* output);
  ~BatchRun();

  // Sends no further request; those under way go on.
  void Stop();
  // Waits for the end; false when it has not come within `limit`.
  bool WaitFor(std::chrono::milliseconds limit);

  BatchCounts counts() const;
  // Requests that wait for their answers.
  size_t under_way() const;
  // Why the answers cannot be kept, if so: then it has stopped by itself.
  absl::Status status() const;

 private:
  void Work();
  // Absent when Stop came while it waited for another attempt.
  std::optional<BatchAnswer> Ask(const BatchRequest& request);
  // Sleeps; false when Stop comes first.
  bool Pause(std::chrono::seconds time);
  void Note(size_t index, const BatchAnswer& answer);

  const BatchRunOptions options_;
  BatchInput* const input_;
  BatchOutput* const output_;
  const HttpClient client_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool stopped_ = false;
  size_t next_ = 0;
  size_t under_way_ = 0;
  uint32_t threads_left_ = 0;
  BatchCounts counts_;
  absl::Status status_;

  std::vector<std::thread> threads_;  // use what is above
};

}  // namespace winnow
