// Golden outputs of Jinja 3.1.6 with the environment that Hugging Face transformers sets up (sandbox, trim_blocks,
// lstrip_blocks, loop controls, its tojson): every expression and tag of the subset, and templates written with the
// constructs of those of public model families over conversations with and without system message, tools and answers.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "common/base/json.h"
#include "router/text/chat_template/chat_template.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFolder[] = "tests/testdata/chat_templates/";

std::string ReadFile(const std::string& name) {
  std::ifstream file(kFolder + name, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<std::string> RenderSource(const std::string& source, const Json& messages,
                                         const ChatTemplate::Options& options) {
  const std::string config =
      Json{{"chat_template", source}, {"bos_token", "<s>"}, {"eos_token", Json{{"content", "</s>"}}}}.dump();
  auto chat_template = ChatTemplate::FromConfig(config, "golden");
  if (!chat_template.ok()) return chat_template.status();
  return chat_template->Render(messages, options);
}

void ExpectSame(const absl::StatusOr<std::string>& text, const Json& golden, const std::string& what) {
  if (golden.value("fails", false)) {
    EXPECT_FALSE(text.ok()) << what << "\nrendered: " << *text;
    return;
  }
  ASSERT_TRUE(text.ok()) << what << "\n" << text.status();
  EXPECT_EQ(*text, golden["text"].get<std::string>()) << what;
}

TEST(ChatTemplateGoldenTest, LanguageMatchesJinja) {
  const Json golden = Json::parse(ReadFile("language.golden.json"));
  ASSERT_GT(golden["cases"].size(), 390u);
  ChatTemplate::Options options;
  options.variables["tools"] = golden["tools"];
  for (const Json& c : golden["cases"]) {
    const auto source = c["template"].get<std::string>();
    ExpectSame(RenderSource(source, golden["messages"], options), c, source);
  }
}

void ExpectStylesToMatch(const Json& golden) {
  for (const Json& c : golden) {
    const auto name = c["template"].get<std::string>();
    ChatTemplate::Options options;
    options.add_generation_prompt = c["add_generation_prompt"].get<bool>();
    options.variables = c["variables"];
    ExpectSame(RenderSource(ReadFile(name + ".jinja"), c["messages"], options), c, name + c["messages"].dump());
  }
}

TEST(ChatTemplateGoldenTest, ModelStylesMatchJinja) {
  const Json golden = Json::parse(ReadFile("model_styles.golden.json"));
  ASSERT_GT(golden.size(), 180u);
  ExpectStylesToMatch(golden);
}

// Conversations with tool calls, their arguments as objects, and their answers, in the styles that show tools.
TEST(ChatTemplateGoldenTest, ToolStylesMatchJinja) {
  const Json golden = Json::parse(ReadFile("tool_styles.golden.json"));
  ASSERT_GT(golden.size(), 160u);
  ExpectStylesToMatch(golden);
}

}  // namespace
}  // namespace winnow
