#include "cmd/chat/conversation.h"

#include <fstream>
#include <iterator>

#include "common/base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

// "role: content" of each message.
std::vector<std::string> MessagesOf(const v1::GenerateRequest& request) {
  std::vector<std::string> messages;
  for (const v1::Message& message : request.messages().messages()) {
    messages.push_back(message.role() + ": " + message.content());
  }
  return messages;
}

using testing::ElementsAre;

TEST(Conversation, EachQuestionBringsAllThatWasSaid) {
  Conversation conversation;
  conversation.set_system("be brief");
  EXPECT_THAT(MessagesOf(conversation.Ask("one?")), ElementsAre("system: be brief", "user: one?"));
  conversation.Answer("1");
  EXPECT_THAT(MessagesOf(conversation.Ask("two?")),
              ElementsAre("system: be brief", "user: one?", "assistant: 1", "user: two?"));
}

TEST(Conversation, AttachmentsGoBeforeTheNextMessageOnce) {
  Conversation conversation;
  conversation.Attach("a text");
  conversation.Attach("another");
  EXPECT_THAT(MessagesOf(conversation.Ask("sum up")), ElementsAre("user: a text\n\nanother\n\nsum up"));
  conversation.Answer("done");
  EXPECT_EQ(conversation.num_attachments(), 0u);
  EXPECT_THAT(MessagesOf(conversation.Ask("more")),
              ElementsAre("user: a text\n\nanother\n\nsum up", "assistant: done", "user: more"));
}

TEST(Conversation, AQuestionWithoutAnyAnswerWasNotAsked) {
  Conversation conversation;
  conversation.Attach("a text");
  conversation.Ask("sum up");
  conversation.Answer("");
  EXPECT_EQ(conversation.num_messages(), 0u);
  EXPECT_THAT(MessagesOf(conversation.Ask("sum up")), ElementsAre("user: a text\n\nsum up"));
}

TEST(Conversation, ResetForgetsAllButTheSystemText) {
  Conversation conversation;
  conversation.set_system("be brief");
  conversation.Ask("one?");
  conversation.Answer("1");
  conversation.Attach("a text");
  conversation.Reset();
  EXPECT_THAT(MessagesOf(conversation.Ask("two?")), ElementsAre("system: be brief", "user: two?"));
}

TEST(Conversation, IsSavedForPeopleAndForPrograms) {
  const TempDir folder;
  Conversation conversation;
  conversation.set_system("be brief");
  conversation.Ask("one?");
  conversation.Answer("1");
  EXPECT_EQ(conversation.ToMarkdown(), "## system\n\nbe brief\n\n## user\n\none?\n\n## assistant\n\n1\n");
  ASSERT_TRUE(conversation.Save(folder.path() + "/chat.json").ok());
  std::ifstream file(folder.path() + "/chat.json");
  const auto json = nlohmann::json::parse(file);
  ASSERT_EQ(json["messages"].size(), 3u);
  EXPECT_EQ(json["messages"][2]["role"], "assistant");
  EXPECT_EQ(json["messages"][2]["content"], "1");
  EXPECT_FALSE(conversation.Save("/no/such/folder/chat.md").ok());
}

}  // namespace
}  // namespace winnow
