#pragma once
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/tasks/task_random.h"

namespace winnow {

// Running text to hide facts in, cut at random lines of some files. Const and thread-safe.
class FillerText {
 public:
  // NOT_FOUND names the file; INVALID_ARGUMENT when the files have no text or are not UTF-8. Lines with "<|" are left
  // out: they may spell a special token.
  static absl::StatusOr<FillerText> Load(const std::vector<std::string>& files);
  explicit FillerText(std::vector<std::string> lines) : lines_(std::move(lines)) {}

  // `chars` bytes from the beginning of a random line on, going round at the end of the files; up to 3 less, so that
  // no UTF-8 character is cut.
  std::string Cut(TaskRandom& random, size_t chars) const;

 private:
  std::vector<std::string> lines_;
};

// docs/*.md and README.md of this project's source tree.
std::vector<std::string> DefaultFillerFiles();

}  // namespace winnow
