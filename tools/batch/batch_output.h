#pragma once
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "common/base/json.h"
#include "common/base/status.h"

namespace winnow {

// What became of one request. Either the server answered, with whatever status, or `error` says why there is no answer.
struct BatchAnswer {
  int status = 0;
  nlohmann::ordered_json body = nullptr;  // text, where the server sent no JSON
  std::string error = {};

  static BatchAnswer Answered(int status, std::string_view body);
  static BatchAnswer Missing(std::string error) { return {.error = std::move(error)}; }
  bool ok() const { return status == 200; }
};

// The answers of a batch, in the format of OpenAI's, one JSON object per line in the order in which they came:
//   {"id": "batch_req_a", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}},
//   "error": null}
//   {"id": "batch_req_b", "custom_id": "b", "response": null, "error": {"code": "no_answer", "message": "..."}}
// Each line is in the file when Write returns, so that whatever ends the program loses none. Thread-safe.
class BatchOutput {
 public:
  // Goes on where the file ends. Answers with status 200 are kept; lines of requests that failed, and one that was
  // being written when a program died, are taken out, because these requests are sent again. INVALID_ARGUMENT for a
  // file that has other lines: it is left alone.
  static absl::StatusOr<std::unique_ptr<BatchOutput>> Open(const std::string& path);

  // Whether the file had an answer when it was opened.
  bool IsAnswered(const std::string& custom_id) const { return answered_.contains(custom_id); }

  absl::Status Write(const std::string& custom_id, const BatchAnswer& answer);

 private:
  explicit BatchOutput(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  std::unordered_set<std::string> answered_;
  std::mutex mutex_;
  std::ofstream file_;  // guarded by mutex_
};

}  // namespace winnow
