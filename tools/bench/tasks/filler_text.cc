#include "tools/bench/tasks/filler_text.h"

#include <filesystem>
#include <fstream>

#include "common/tokenizer/utf8.h"

namespace winnow {

absl::StatusOr<FillerText> FillerText::Load(const std::vector<std::string>& files) {
  std::vector<std::string> lines;
  for (const std::string& file : files) {
    std::ifstream in(file);
    if (!in) return absl::NotFoundError(absl::StrCat(file, ": cannot be read"));
    std::string line;
    for (size_t number = 1; std::getline(in, line); ++number) {
      if (FindInvalidUtf8(line) != std::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat(file, ":", number, ": is not UTF-8"));
      }
      if (line.find("<|") == std::string::npos) lines.push_back(line);
    }
  }
  size_t bytes = 0;
  for (const std::string& line : lines) bytes += line.size();
  if (bytes == 0) return absl::InvalidArgumentError("the filler files hold no text");
  return FillerText(std::move(lines));
}

std::string FillerText::Cut(TaskRandom& random, size_t chars) const {
  std::string text;
  for (size_t line = random.Below(lines_.size()); text.size() < chars; line = (line + 1) % lines_.size()) {
    absl::StrAppend(&text, lines_[line], "\n");
  }
  size_t end = chars;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text;
}

std::vector<std::string> DefaultFillerFiles() {
  const std::filesystem::path root = WINNOW_SOURCE_DIR;
  std::vector<std::string> files = {root / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // the order decides the text
  return files;
}

}  // namespace winnow
