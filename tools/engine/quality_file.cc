#include "tools/engine/quality_file.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/status.h"

namespace winnow {
namespace {

// Fields of a line; those with commas are in quotes.
std::vector<std::string> FieldsOf(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

}  // namespace

absl::StatusOr<QualityFile> QualityFile::Load(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const std::vector<std::string> header = FieldsOf(line);
  const auto column = [&](std::string_view name) -> size_t {
    return std::find(header.begin(), header.end(), name) - header.begin();
  };
  const size_t task = column("task"), spec = column("spec"), budget = column("budget"), prompts = column("prompts"),
               mass = column("mass_mean"), tokens = column("token_share");
  for (const size_t wanted : {task, spec, budget, prompts, mass, tokens}) {
    if (wanted == header.size()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is no summary.csv of selection_quality"));
    }
  }
  QualityFile file;
  double dense = 0;
  while (std::getline(in, line)) {
    const std::vector<std::string> fields = FieldsOf(line);
    if (fields.size() < header.size() || fields[task] != "all") continue;
    Entry entry;
    uint32_t rows = 0;
    if (!absl::SimpleAtoi(fields[budget], &rows) || !absl::SimpleAtoi(fields[prompts], &entry.prompts) ||
        !absl::SimpleAtod(fields[tokens], &entry.tokens_right)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": \"", line, "\" is no line of a summary"));
    }
    if (!absl::SimpleAtod(fields[mass], &entry.captured_mass)) entry.captured_mass = 0;  // not measured
    if (fields[spec] == "dense") dense = entry.tokens_right;
    file.entries_[{fields[spec], rows}] = entry;
  }
  for (auto& [key, entry] : file.entries_) entry.dense_tokens_right = dense;
  return file;
}

std::optional<QualityFile::Entry> QualityFile::Find(const std::string& spec, uint32_t budget) const {
  auto found = entries_.find({spec, budget});
  if (found == entries_.end() && spec == "dense") found = entries_.find({spec, 0});
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

}  // namespace winnow
