#pragma once
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"

namespace winnow {

// A YAML scalar in double quotes, which holds any text.
inline std::string YamlQuoted(std::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(AbslSv(text), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
}

// One word of a shell: as it is where no character of it means anything there, else in single quotes.
inline std::string ShellWord(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=@%+";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  return absl::StrCat("'", absl::StrReplaceAll(AbslSv(text), {{"'", "'\\''"}}), "'");
}

}  // namespace winnow
