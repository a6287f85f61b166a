#include "tools/batch/batch_input.h"

#include <unordered_map>

#include "common/base/json.h"

namespace winnow {
namespace {

// Keeps the order of the body's keys, which chat templates see.
using Json = nlohmann::ordered_json;

absl::StatusOr<std::string> TextOf(const Json& line, const char* field) {
  const auto it = line.find(field);
  if (it == line.end()) return absl::InvalidArgumentError(absl::StrCat("\"", field, "\" is missing"));
  if (!it->is_string() || it->get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", field, "\" is no text, or an empty one"));
  }
  return it->get<std::string>();
}

absl::StatusOr<BatchRequest> Parse(const std::string& text) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return absl::InvalidArgumentError("no JSON object");
  for (const auto& [key, value] : line.items()) {
    if (key != "custom_id" && key != "method" && key != "url" && key != "body") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown field \"", key, "\"; there are custom_id, method, url and body"));
    }
  }
  BatchRequest request;
  WINNOW_ASSIGN_OR_RETURN(request.custom_id, TextOf(line, "custom_id"));
  WINNOW_ASSIGN_OR_RETURN(const std::string method, TextOf(line, "method"));
  if (method != "POST") return absl::InvalidArgumentError(absl::StrCat("\"method\" is \"", method, "\", not \"POST\""));
  WINNOW_ASSIGN_OR_RETURN(request.url, TextOf(line, "url"));
  if (!request.url.starts_with("/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"url\" is \"", request.url, "\", not a path as \"/v1/chat/completions\""));
  }
  const auto body = line.find("body");
  if (body == line.end() || !body->is_object()) return absl::InvalidArgumentError("\"body\" is missing, or no object");
  if (const auto stream = body->find("stream"); stream != body->end() && *stream == true) {
    return absl::InvalidArgumentError("\"body.stream\" is true; answers of a batch come whole");
  }
  request.body = body->dump();
  return request;
}

}  // namespace

absl::StatusOr<BatchInput> BatchInput::Open(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  BatchInput input(path, std::move(file));
  std::unordered_map<std::string, size_t> numbers;
  std::string text;
  for (size_t number = 1;; ++number) {
    const std::streamoff begin = input.file_.tellg();
    if (!std::getline(input.file_, text)) break;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<BatchRequest> request = Parse(text);
    if (!request.ok()) return Annotate(request.status(), absl::StrCat(path, ":", number));
    const auto [it, is_new] = numbers.emplace(request->custom_id, number);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": custom_id \"", request->custom_id,
                                                     "\" is that of line ", it->second, ", too"));
    }
    input.lines_.push_back({number, begin, std::move(request->custom_id)});
  }
  if (input.lines_.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no requests"));
  return input;
}

absl::StatusOr<BatchRequest> BatchInput::Read(size_t index) {
  const Line& line = lines_[index];
  std::string text;
  {
    const std::lock_guard lock(*mutex_);
    file_.clear();
    file_.seekg(line.begin);
    std::getline(file_, text);
  }
  absl::StatusOr<BatchRequest> request = Parse(text);
  if (!request.ok() || request->custom_id != line.custom_id) {
    return absl::DataLossError(absl::StrCat(path_, ":", line.number, ": has changed meanwhile"));
  }
  return request;
}

}  // namespace winnow
