#include "tools/profile/profile_texts.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_split.h"
#include "common/base/json.h"

namespace winnow {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": it is a folder"));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Of an object; empty where it has none of that name that is a text.
std::string TextOf(const nlohmann::json& object, const char* name) {
  const bool has = object.is_object() && object.contains(name) && object[name].is_string();
  return has ? object[name].get<std::string>() : "";
}

absl::StatusOr<ProfileText> EncodePrompt(const nlohmann::json& object, const ModelText& text) {
  const std::string prompt = TextOf(object, "prompt"), answer = TextOf(object, "answer");
  if (prompt.empty()) return absl::InvalidArgumentError("no object with a \"prompt\"");
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", prompt}}};
  WINNOW_ASSIGN_OR_RETURN(const std::string chat,
                          text.RenderChat(messages, /*add_generation_prompt=*/true, nlohmann::json::object()));
  ProfileText result;
  WINNOW_ASSIGN_OR_RETURN(result.tokens, text.Encode(chat, /*add_special_tokens=*/false));
  if (answer.empty()) return result;
  WINNOW_ASSIGN_OR_RETURN(const std::vector<uint32_t> said, text.Encode(answer, /*add_special_tokens=*/false));
  result.answer_begins = static_cast<uint32_t>(result.tokens.size());
  result.tokens.insert(result.tokens.end(), said.begin(), said.end());
  return result;
}

}  // namespace

absl::StatusOr<ProfileText> ReadTextFile(const std::string& path, const ModelText& text) {
  WINNOW_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  absl::StatusOr<std::vector<uint32_t>> tokens = text.Encode(contents, /*add_special_tokens=*/true);
  if (!tokens.ok()) return Annotate(tokens.status(), path);
  return ProfileText{.name = path, .tokens = *std::move(tokens)};
}

absl::StatusOr<std::vector<ProfileText>> ReadPromptFile(const std::string& path, const ModelText& text) {
  WINNOW_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  std::vector<ProfileText> texts;
  int line = 0;
  for (const absl::string_view json : absl::StrSplit(contents, '\n')) {
    ++line;
    if (json.empty()) continue;
    std::string name = absl::StrCat(path, ":", line);
    absl::StatusOr<ProfileText> prompt = EncodePrompt(ParseJson(StdSv(json)), text);
    if (!prompt.ok()) return Annotate(prompt.status(), name);
    prompt->name = std::move(name);
    texts.push_back(*std::move(prompt));
  }
  return texts;
}

}  // namespace winnow
