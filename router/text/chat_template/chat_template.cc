#include "router/text/chat_template/chat_template.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "common/base/check.h"
#include "common/tokenizer/json_node.h"
#include "router/text/chat_template/interpreter.h"
#include "router/text/chat_template/parser.h"
#include "router/text/chat_template/value.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kChatMl =
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";
constexpr std::array<const char*, 7> kSpecialTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                       "pad_token", "cls_token", "mask_token"};
constexpr int kMaxConfigDepth = 64;
constexpr uintmax_t kMaxFileBytes = 64 << 20;

// The file's bytes, or nullopt where there is no such file.
absl::StatusOr<std::optional<std::string>> ReadIfPresent(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const uintmax_t size = fs::file_size(path, error);
  if (error) return absl::DataLossError(absl::StrCat(path.string(), ": ", error.message()));
  if (size > kMaxFileBytes) return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", size, " bytes"));
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::DataLossError(absl::StrCat(path.string(), ": cannot be read"));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

size_t TextBytes(const nlohmann::ordered_json& json) {
  // The compact form is the text and a little more; measured without making it would need a walk of its own.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size();
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Load(const std::string& model_dir) {
  const fs::path config_path = fs::path(model_dir) / "tokenizer_config.json";
  const fs::path template_path = fs::path(model_dir) / "chat_template.jinja";
  ChatTemplate result;
  WINNOW_ASSIGN_OR_RETURN(const auto source, ReadIfPresent(template_path));
  if (source.has_value()) WINNOW_RETURN_IF_ERROR(result.Add(*source, template_path.string(), "default"));
  WINNOW_ASSIGN_OR_RETURN(const auto config, ReadIfPresent(config_path));
  if (config.has_value()) {
    WINNOW_RETURN_IF_ERROR(result.ReadConfig(*config, config_path.string(), /*with_templates=*/!source.has_value()));
  }
  if (result.templates_.empty()) WINNOW_CHECK(result.Add(kChatMl, "ChatML", "default").ok());
  return result;
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromConfig(std::string_view tokenizer_config, std::string_view name) {
  ChatTemplate result;
  WINNOW_RETURN_IF_ERROR(result.ReadConfig(tokenizer_config, name, /*with_templates=*/true));
  if (result.templates_.empty()) WINNOW_CHECK(result.Add(kChatMl, "ChatML", "default").ok());
  return result;
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromSource(std::string_view source, std::string_view name) {
  ChatTemplate result;
  WINNOW_RETURN_IF_ERROR(result.Add(source, std::string(name), "default"));
  return result;
}

ChatTemplate ChatTemplate::ChatMl() {
  ChatTemplate result;
  WINNOW_CHECK(result.Add(kChatMl, "ChatML", "default").ok());
  return result;
}

absl::Status ChatTemplate::Add(std::string_view source, std::string name, std::string key) {
  auto body = chat_template::Parse(source);
  if (!body.ok()) return Annotate(body.status(), name);
  auto parsed = std::make_shared<Parsed>();
  parsed->name = std::move(name);
  parsed->key = std::move(key);
  parsed->body = *std::move(body);
  templates_.push_back(std::move(parsed));
  absl::StrAppend(&sources_, AbslSv(source), "\n");
  return absl::OkStatus();
}

bool ChatTemplate::Mentions(std::string_view word) const {
  const auto in_word = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = sources_.find(word); at != sources_.npos; at = sources_.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !in_word(sources_[at - 1]);
    if (begins && (end == sources_.size() || !in_word(sources_[end]))) return true;
  }
  return false;
}

absl::Status ChatTemplate::ReadConfig(std::string_view tokenizer_config, std::string_view name, bool with_templates) {
  const auto document = ParseBoundedJson(tokenizer_config, kMaxConfigDepth);
  if (!document.ok()) return Annotate(document.status(), name);
  const JsonNode root(&*document, std::string(name));
  WINNOW_RETURN_IF_ERROR(root.RequireObject());
  for (const char* key : kSpecialTokens) {
    if (!root.Has(key)) continue;
    WINNOW_ASSIGN_OR_RETURN(const JsonNode node, root.Member(key));
    WINNOW_ASSIGN_OR_RETURN(std::string token, node.value().is_object() ? node.String("content") : node.AsString());
    variables_.emplace_back(key, std::move(token));
  }
  if (!with_templates || !root.Has("chat_template")) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const JsonNode node, root.Member("chat_template"));
  if (node.value().is_string()) {
    WINNOW_ASSIGN_OR_RETURN(const std::string source, node.AsString());
    return Add(source, node.path(), "default");
  }
  WINNOW_RETURN_IF_ERROR(node.RequireArray());
  for (size_t i = 0; i < node.value().size(); ++i) {
    const JsonNode element = node.Element(i);
    WINNOW_ASSIGN_OR_RETURN(const std::string key, element.String("name"));
    WINNOW_ASSIGN_OR_RETURN(const std::string source, element.String("template"));
    WINNOW_RETURN_IF_ERROR(Add(source, element.path(), key));
  }
  return absl::OkStatus();
}

const ChatTemplate::Parsed& ChatTemplate::Choose(const Options& options) const {
  const auto tools = options.variables.find("tools");
  const bool with_tools = tools != options.variables.end() && !tools->is_null();
  const Parsed* chosen = templates_.front().get();
  for (const auto& parsed : templates_) {
    if (parsed->key == "default") chosen = parsed.get();
  }
  for (const auto& parsed : templates_) {
    if (with_tools && parsed->key == "tool_use") chosen = parsed.get();
  }
  return *chosen;
}

absl::StatusOr<std::string> ChatTemplate::Render(const nlohmann::ordered_json& messages, const Options& options) const {
  if (!options.variables.is_object()) return absl::InvalidArgumentError("template variables must be an object");
  const Parsed& chosen = Choose(options);
  // Real templates read each message a few times; what they may spend grows with the input.
  const auto input_bytes = static_cast<int64_t>(TextBytes(messages) + TextBytes(options.variables));
  chat_template::Limits limits;
  limits.max_steps += input_bytes;
  limits.max_bytes += 64 * input_bytes;
  limits.max_work_bytes += 1024 * input_bytes;
  limits.max_output_bytes += 4 * input_bytes;
  chat_template::Heap heap(limits);
  chat_template::Scope* globals = heap.NewScope(nullptr);
  for (const char* key : {"tools", "documents"}) globals->variables[key] = chat_template::Value(chat_template::None{});
  for (const auto& [key, token] : variables_) globals->variables[key] = chat_template::Value::String(token);
  for (const auto& [key, json] : options.variables.items()) {
    auto value = heap.FromJson(json);
    if (!value.ok()) return Annotate(value.status(), absl::StrCat("template variable ", key));
    globals->variables[key] = *std::move(value);
  }
  auto converted = heap.FromJson(messages);
  if (!converted.ok()) return Annotate(converted.status(), "messages");
  globals->variables["messages"] = *std::move(converted);
  globals->variables["add_generation_prompt"] = chat_template::Value(options.add_generation_prompt);
  auto text = chat_template::Interpreter(&heap, options.now.value_or(std::time(nullptr))).Render(chosen.body, globals);
  if (!text.ok()) return Annotate(text.status(), chosen.name);
  return text;
}

}  // namespace winnow
