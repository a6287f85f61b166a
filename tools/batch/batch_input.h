#pragma once
#include <cstdint>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// One line of a batch: a request, and the name that its answer carries.
struct BatchRequest {
  std::string custom_id;
  std::string url;   // path at the server
  std::string body;  // JSON, as it stands in the file
};

// A file of requests in the format of OpenAI's batches, one JSON object per line:
//   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
// Only names and places are kept in memory. Empty lines count as lines and are passed over. Thread-safe.
class BatchInput {
 public:
  // Reads and checks the whole file. INVALID_ARGUMENT names file and line: no JSON object, a field that is missing or
  // not known, a custom_id that came before, a request for a stream.
  static absl::StatusOr<BatchInput> Open(const std::string& path);

  size_t size() const { return lines_.size(); }
  const std::string& custom_id(size_t index) const { return lines_[index].custom_id; }
  // Counted from 1.
  size_t line_number(size_t index) const { return lines_[index].number; }
  // DATA_LOSS when the file has changed since Open.
  absl::StatusOr<BatchRequest> Read(size_t index);

 private:
  struct Line {
    size_t number;
    std::streamoff begin;
    std::string custom_id;
  };
  BatchInput(std::string path, std::ifstream file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  std::vector<Line> lines_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::ifstream file_;  // guarded by mutex_
};

}  // namespace winnow
