#include "cmd/terminal/pasted_texts.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace winnow {
namespace {

constexpr size_t kShortBytes = 400;

}  // namespace

std::string PastedTexts::Add(std::string text) {
  if (text.size() <= kShortBytes && text.find('\n') == std::string::npos) return text;
  std::string note = absl::StrCat("[pasted text ", pastes_.size() + 1, ", ", text.size(), " bytes]");
  pastes_.push_back({note, std::move(text)});
  return note;
}

std::string PastedTexts::Expand(const std::string& line) const {
  std::vector<std::pair<absl::string_view, absl::string_view>> replacements;
  for (const Paste& paste : pastes_) replacements.emplace_back(paste.note, paste.text);
  return absl::StrReplaceAll(line, replacements);
}

std::string WithLineFeeds(const std::string& pasted) {
  return absl::StrReplaceAll(pasted, {{"\r\n", "\n"}, {"\r", "\n"}});
}

}  // namespace winnow
