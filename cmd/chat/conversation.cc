#include "cmd/chat/conversation.h"

#include <fstream>

#include "absl/strings/str_join.h"
#include "clients/cpp/client.h"
#include "common/base/json.h"

namespace winnow {

std::vector<Conversation::Message> Conversation::All() const {
  std::vector<Message> all;
  if (!system_.empty()) all.emplace_back("system", system_);
  all.insert(all.end(), messages_.begin(), messages_.end());
  return all;
}

v1::GenerateRequest Conversation::Ask(const std::string& text) {
  asked_with_ = std::move(attachments_);
  attachments_.clear();
  std::vector<std::string> parts = asked_with_;
  parts.push_back(text);
  messages_.emplace_back("user", absl::StrJoin(parts, "\n\n"));
  return ChatRequest(All());
}

void Conversation::Answer(std::string text) {
  if (text.empty()) {
    messages_.pop_back();
    attachments_ = std::move(asked_with_);
  } else {
    messages_.emplace_back("assistant", std::move(text));
  }
  asked_with_.clear();
}

void Conversation::Reset() {
  messages_.clear();
  attachments_.clear();
}

std::string Conversation::ToJson() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [role, content] : All()) list.push_back({{"role", role}, {"content", content}});
  return nlohmann::ordered_json({{"messages", std::move(list)}}).dump(2) + "\n";
}

std::string Conversation::ToMarkdown() const {
  std::string text;
  for (const auto& [role, content] : All()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", "## ", role, "\n\n", content, "\n");
  }
  return text;
}

absl::Status Conversation::Save(const std::string& path) const {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << (path.ends_with(".json") ? ToJson() : ToMarkdown());
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace winnow
