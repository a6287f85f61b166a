#include "router/text/chat_template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

const Json kHello = Json::parse(R"([{"role": "user", "content": "Hello"}])");

absl::StatusOr<std::string> Render(std::string_view source, const Json& messages = kHello,
                                   const ChatTemplate::Options& options = {}) {
  auto chat_template = ChatTemplate::FromSource(source, "test");
  if (!chat_template.ok()) return chat_template.status();
  return chat_template->Render(messages, options);
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = testing::TempDir() + "winnow_template_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(path_ + "/" + name) << text; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ChatTemplateTest, ChatMlIsExact) {
  const Json messages = Json::parse(
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": " U\n"}, {"role": "assistant", "content": ""}])");
  ChatTemplate::Options options;
  const std::string turns =
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U\n<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n";
  EXPECT_EQ(ChatTemplate::ChatMl().Render(messages, options).value(), turns + "<|im_start|>assistant\n");
  options.add_generation_prompt = false;
  EXPECT_EQ(ChatTemplate::ChatMl().Render(messages, options).value(), turns);
}

TEST(ChatTemplateTest, DirectoryWithoutTemplateIsChatMl) {
  const TemporaryFolder folder;
  const auto chat_template = ChatTemplate::Load(folder.path());
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  EXPECT_EQ(chat_template->Render(kHello, {}).value(), "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, TokensComeAsStringsOrObjects) {
  const TemporaryFolder folder;
  folder.Write("tokenizer_config.json",
               R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null,
                   "chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}"})");
  EXPECT_EQ(ChatTemplate::Load(folder.path())->Render(kHello, {}).value(), "<s>|</s>|False");
}

TEST(ChatTemplateTest, JinjaFileWinsOverConfig) {
  const TemporaryFolder folder;
  folder.Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "config"})");
  folder.Write("chat_template.jinja", "{{ bos_token }}file\n");
  EXPECT_EQ(ChatTemplate::Load(folder.path())->Render(kHello, {}).value(), "<s>file");
}

TEST(ChatTemplateTest, ToolTemplateIsChosenWhenThereAreTools) {
  const auto chat_template = ChatTemplate::FromConfig(
      R"({"chat_template": [{"name": "tool_use", "template": "with tools"}, {"name": "default", "template": "plain"}]})",
      "config");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  ChatTemplate::Options options;
  EXPECT_EQ(chat_template->Render(kHello, options).value(), "plain");
  options.variables["tools"] = Json::array({Json{{"name", "f"}}});
  EXPECT_EQ(chat_template->Render(kHello, options).value(), "with tools");
}

TEST(ChatTemplateTest, ToolsKeepTheOrderOfTheirMembers) {
  ChatTemplate::Options options;
  options.variables["tools"] = Json::parse(R"([{"z": 1, "a": "é<", "m": [true, null, 1.5]}])");
  EXPECT_EQ(Render("{{ tools | tojson }}", kHello, options).value(),
            R"([{"z": 1, "a": "é<", "m": [true, null, 1.5]}])");
}

TEST(ChatTemplateTest, StrftimeNowShowsTheGivenTime) {
  ChatTemplate::Options options;
  std::tm day{};
  day.tm_year = 124, day.tm_mon = 6, day.tm_mday = 26, day.tm_hour = 12, day.tm_isdst = -1;
  options.now = std::mktime(&day);
  EXPECT_EQ(Render("{{ strftime_now('%d %b %Y') }}", kHello, options).value(), "26 Jul 2024");
}

// The sandbox of transformers refuses to change lists; templates for other engines do it.
TEST(ChatTemplateTest, ListsCanGrow) {
  EXPECT_EQ(Render("{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}").value(), "[1, 2]");
}

TEST(ChatTemplateTest, ConstantIntegersAreRefusedBeyond64Bits) {
  EXPECT_THAT(Render("{{ 99999999999999999999 }}").status().message(), HasSubstr("out of range"));
}

struct ErrorCase {
  const char* source;
  const char* message;
};

TEST(ChatTemplateTest, ErrorsNameTemplateLineAndReason) {
  const ErrorCase cases[] = {
      {"a\n{% if true %}", "test: line 2: found the end of the template where the block of line 2 needs 'endif'"},
      {"{% for x in y %}\n{% endif %}", "test: line 2: found 'endif' where the block of line 1 needs 'endfor'"},
      {"\n\n{{ 1 + }}", "test: line 3: unexpected '}}', expected an expression"},
      {"{{ 'abc }}", "test: line 1: string without its closing quote"},
      {"\n{# x", "test: line 2: comment without #}"},
      {"{{ a", "test: line 1: expression without }}"},
      {"{% raw %} x", "test: line 1: raw block without endraw"},
      {"{% include 'x' %}", "test: line 1: unknown or unsupported tag 'include'"},
      {"{% break %}", "test: line 1: 'break' outside of a for loop"},
      {"{% for x in [1] %}{% set y %}{% break %}{% endset %}{% endfor %}", "'break' outside of a for loop"},
      {"{{ f(*x) }}", "* arguments are not supported"},
      {"{{ ) }}", "unexpected ')'"},
      {"{% set none = 1 %}", "'none' cannot be assigned to"},
      {"\n{{ raise_exception('roles ' ~ 'alternate') }}", "test: line 2: roles alternate"},
      {"{{ x.y }}", "test: line 1: 'x' is undefined"},
      {"\n{{ messages[0].content | nope }}", "test: line 2: no filter named 'nope'"},
      {"{{ 1 is nope }}", "test: line 1: no test named 'nope'"},
      {"{{ 'a'.nope() }}", "a value of type str has no method 'nope'"},
      {"{{ nope() }}", "'nope' is undefined and cannot be called"},
      {"{{ 1 + 'a' }}", "unsupported operand types for +: int and str"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "integer overflow"},
      {"{% set d = {} %}{% set d.x = 1 %}", "not a namespace"},
      {"{% for a, b in [[1]] %}{% endfor %}", "cannot unpack 1 values into 2 names"},
      {"{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}", "test: line 2: macro 'm' takes at most 1 arguments"},
      {"\xFF", "test: not UTF-8 at byte 0"},
  };
  for (const ErrorCase& c : cases) {
    const auto text = Render(c.source);
    ASSERT_FALSE(text.ok()) << c.source;
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << c.source;
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(c.message)) << c.source;
  }
}

TEST(ChatTemplateTest, HostileTemplatesRunIntoLimits) {
  const char* sources[] = {
      // Time.
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set s = 'x' * 1000000 %}{% for a in range(99999) %}{{ 'y' in s }}{% endfor %}",
      // Memory and output.
      "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{{ 'x' * 999999999999 }}",
      "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
      "{% for a in range(99999) %}{{ 'xxxxxxxxxxxxxxxx' * 1000 }}{% endfor %}",
      "{{ range(9999999) }}",
      // A list that contains itself, and one whose text doubles at every level.
      "{% set l = [1] %}{% set _ = l.append(l) %}{{ l }}",
      "{% set l = [1] %}{% set _ = l.append(l) %}{{ l == [1, l] }}{{ l | tojson }}",
      "{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      // Recursion.
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
  };
  for (const char* source : sources) EXPECT_FALSE(Render(source).ok()) << source;
}

TEST(ChatTemplateTest, NestingIsBounded) {
  const auto repeat = [](const std::string& s, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += s;
    return out;
  };
  EXPECT_THAT(Render("{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}").status().message(),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(Render("{{ " + repeat("not ", 5000) + "1 }}").status().message(), HasSubstr("nested too deeply"));
  EXPECT_THAT(Render("{{ 1" + repeat("+1", 5000) + " }}").status().message(), HasSubstr("nested too deeply"));
  EXPECT_THAT(Render("{{ 1" + repeat("|abs", 5000) + " }}").status().message(), HasSubstr("nested too deeply"));
  EXPECT_THAT(Render(repeat("{% if 1 %}", 5000)).status().message(), HasSubstr("nested too deeply"));
  EXPECT_EQ(Render("{{ 1" + repeat("+1", 99) + " }}").value(), "100");
}

TEST(ChatTemplateTest, MessagesMustBeUtf8AndShallow) {
  Json bad = kHello;
  bad[0]["content"] = "\xFF";
  EXPECT_THAT(ChatTemplate::ChatMl().Render(bad, {}).status().message(), HasSubstr("not UTF-8"));
  Json deep = 1;
  for (int i = 0; i < 100; ++i) deep = Json::array({deep});
  bad[0]["content"] = deep;
  EXPECT_THAT(ChatTemplate::ChatMl().Render(bad, {}).status().message(), HasSubstr("nested too deeply"));
}

TEST(ChatTemplateTest, BadConfigNamesFileAndPath) {
  EXPECT_THAT(ChatTemplate::FromConfig("{", "c.json").status().message(), HasSubstr("c.json: not JSON"));
  EXPECT_THAT(ChatTemplate::FromConfig(R"({"chat_template": 1})", "c.json").status().message(),
              HasSubstr("c.json.chat_template: expected an array"));
  EXPECT_THAT(ChatTemplate::FromConfig(R"({"chat_template": [{"name": "x"}]})", "c.json").status().message(),
              HasSubstr("c.json.chat_template[0].template: missing"));
  EXPECT_THAT(ChatTemplate::FromConfig(R"({"bos_token": 3})", "c.json").status().message(),
              HasSubstr("c.json.bos_token: expected a string"));
}

}  // namespace
}  // namespace winnow
