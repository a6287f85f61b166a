// Any template is rendered or refused: no crash, no hang, no undefined behaviour. The messages hold what templates look
// at, so that whatever parses also has something to work on.
#include <cstdint>
#include <string_view>

#include "common/base/json.h"
#include "router/text/chat_template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto messages = nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hé <think>\nx</think>"},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]},
    {"role": "tool", "content": "42"}])");
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto chat_template = winnow::ChatTemplate::FromSource(source, "fuzz");
  if (!chat_template.ok()) return 0;
  winnow::ChatTemplate::Options options;
  options.variables["tools"] = nlohmann::ordered_json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  options.now = 0;
  (void)chat_template->Render(messages, options);
  return 0;
}
