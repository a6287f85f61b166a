#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace winnow {

// What selections cost in answers, as `selection_quality` wrote it (summary.csv), so that it stands beside what they
// cost in time.
class QualityFile {
 public:
  struct Entry {
    double captured_mass = 0, tokens_right = 0, dense_tokens_right = 0;
    int prompts = 0;
  };
  // NOT_FOUND without the file; INVALID_ARGUMENT where columns are missing.
  static absl::StatusOr<QualityFile> Load(const std::string& path);

  // Of a specification as it was named there, or nothing. Means over all tasks, weighted by prompts.
  std::optional<Entry> Find(const std::string& spec, uint32_t budget) const;

 private:
  std::map<std::pair<std::string, uint32_t>, Entry> entries_;
};

}  // namespace winnow
