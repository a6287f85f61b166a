#include "cmd/chat/chat_command.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;

std::string Error(std::string_view line) {
  const auto command = ParseChatCommand(line);
  EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument) << line;
  return std::string(command.status().message());
}

TEST(ChatCommand, AMessageIsNone) {
  for (const char* line : {"hello", " /help me", "//etc/passwd holds what?", ""}) {
    const auto command = ParseChatCommand(line);
    ASSERT_TRUE(command.ok()) << line;
    EXPECT_FALSE(command->has_value()) << line;
  }
  EXPECT_EQ(MessageOf("//etc/passwd holds what?"), "/etc/passwd holds what?");
  EXPECT_EQ(MessageOf("a // b"), "a // b");
}

TEST(ChatCommand, HasAVerbAndAnOperand) {
  const auto file = ParseChatCommand("/file  a b.txt ");
  ASSERT_TRUE(file.ok() && file->has_value());
  EXPECT_EQ((*file)->verb, ChatVerb::kFile);
  EXPECT_EQ((*file)->operand, "a b.txt");
  const auto system = ParseChatCommand("/system");
  ASSERT_TRUE(system.ok() && system->has_value());
  EXPECT_EQ((*system)->verb, ChatVerb::kSystem);
  EXPECT_EQ((*system)->operand, "");
}

TEST(ChatCommand, MistakesSayWhatToTypeInstead) {
  EXPECT_THAT(Error("/slection x"), HasSubstr("did you mean \"/selection\"?"));
  EXPECT_THAT(Error("/zzzzzzzzzz"), HasSubstr("/help lists them"));
  EXPECT_EQ(Error("/file"), "/file needs PATH");
  EXPECT_EQ(Error("/quit now"), "/quit takes nothing");
}

TEST(ChatCommand, HelpHasALineForEach) {
  for (const char* name : {"/file PATH", "/system", "/selection", "/stats", "/reset", "/save", "/help", "/quit"}) {
    EXPECT_THAT(ChatCommandHelp(), HasSubstr(std::string("  ") + name));
  }
}

}  // namespace
}  // namespace winnow
