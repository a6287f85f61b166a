#pragma once
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// What has been said in a chat, and what goes along with the next message.
class Conversation {
 public:
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }

  // A text that the next message begins with.
  void Attach(std::string text) { attachments_.push_back(std::move(text)); }
  size_t num_attachments() const { return attachments_.size(); }

  // A person's message, behind the attachments, and what is to be asked of the server then.
  v1::GenerateRequest Ask(const std::string& text);
  // What the model answered, perhaps cut short. Nothing at all takes the question back, attachments and all: it may be
  // asked again.
  void Answer(std::string text);

  // Forgets what was said and attached; the system text stays.
  void Reset();

  size_t num_messages() const { return messages_.size(); }
  // As a JSON object with the messages, as APIs take them.
  std::string ToJson() const;
  // As Markdown, for people.
  std::string ToMarkdown() const;
  // As JSON to files named so, otherwise as Markdown. UNAVAILABLE when it cannot be written.
  absl::Status Save(const std::string& path) const;

 private:
  using Message = std::pair<std::string, std::string>;  // role, content
  std::vector<Message> All() const;                     // with the system text

  std::string system_;
  std::vector<Message> messages_;
  std::vector<std::string> attachments_;
  std::vector<std::string> asked_with_;  // the attachments of the question that is not answered yet
};

}  // namespace winnow
