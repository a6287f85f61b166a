#include "tools/bench/tasks/prompt_file.h"

#include <fstream>
#include <unordered_set>

#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

absl::Status ReadText(const Json& line, const char* field, std::string* out) {
  const auto found = line.find(field);
  if (found == line.end()) return absl::InvalidArgumentError(absl::StrCat("field \"", field, "\" is missing"));
  if (!found->is_string()) return absl::InvalidArgumentError(absl::StrCat("field \"", field, "\" is no string"));
  *out = found->get<std::string>();
  if (out->empty()) return absl::InvalidArgumentError(absl::StrCat("field \"", field, "\" is empty"));
  return absl::OkStatus();
}

absl::StatusOr<TaskPrompt> ParseLine(const std::string& text) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return absl::InvalidArgumentError("is no JSON object");
  TaskPrompt prompt;
  WINNOW_RETURN_IF_ERROR(ReadText(line, "id", &prompt.id));
  WINNOW_RETURN_IF_ERROR(ReadText(line, "task", &prompt.task));
  WINNOW_RETURN_IF_ERROR(ReadText(line, "prompt", &prompt.prompt));
  WINNOW_RETURN_IF_ERROR(ReadText(line, "answer", &prompt.answer));
  const auto chars = line.find("chars");
  if (chars == line.end() || !chars->is_number_unsigned() || *chars > 100'000'000u) {
    return absl::InvalidArgumentError("field \"chars\" is missing or no length");
  }
  prompt.chars = chars->get<int>();
  return prompt;
}

}  // namespace

absl::StatusOr<std::vector<TaskPrompt>> ParsePrompts(std::istream& in, std::string_view file) {
  std::vector<TaskPrompt> prompts;
  std::unordered_set<std::string> ids;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    absl::StatusOr<TaskPrompt> prompt = ParseLine(line);
    if (prompt.ok() && !ids.insert(prompt->id).second) {
      prompt = absl::InvalidArgumentError(absl::StrCat("id \"", prompt->id, "\" occurs twice"));
    }
    if (!prompt.ok()) return Annotate(prompt.status(), absl::StrCat(AbslSv(file), ":", number));
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty()) return absl::InvalidArgumentError(absl::StrCat(AbslSv(file), ": holds no prompts"));
  return prompts;
}

absl::StatusOr<std::vector<TaskPrompt>> ReadPrompts(const std::string& file) {
  std::ifstream in(file);
  if (!in) return absl::NotFoundError(absl::StrCat(file, ": cannot be read"));
  return ParsePrompts(in, file);
}

std::string PromptLine(const TaskPrompt& prompt) {
  return Json{{"id", prompt.id},
              {"task", prompt.task},
              {"chars", prompt.chars},
              {"prompt", prompt.prompt},
              {"answer", prompt.answer}}
      .dump();
}

absl::Status WritePrompts(const std::string& file, const std::vector<TaskPrompt>& prompts) {
  std::ofstream out(file);
  for (const TaskPrompt& prompt : prompts) out << PromptLine(prompt) << '\n';
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(file, ": cannot be written"));
}

}  // namespace winnow
