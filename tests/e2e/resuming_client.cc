#include "tests/e2e/resuming_client.h"

#include <gtest/gtest.h>

#include <thread>

namespace winnow::e2e {

using std::chrono::milliseconds;

ResumingClient::ResumingClient(const RouterPair& routers, Json request, int router)
    : routers_(routers), request_(std::move(request)), router_(router) {
  request_["stream"] = true;
  request_["winnow"]["resumable"] = true;
}

void ResumingClient::Read(size_t cut_after, bool stay) {
  for (const auto end = Clock::now() + std::chrono::minutes(1); Clock::now() < end && !done_;) {
    HttpHeaders headers;
    if (!token_.empty()) headers.emplace_back("Winnow-Resume", token_);
    if (!last_id_.empty()) headers.emplace_back("Last-Event-ID", last_id_);
    bool cut = false;
    const HttpReply reply =
        routers_.http(router_).With(headers).StreamEvents(kPath, request_, [&](const ServerSentEvent& event) {
          Take(event);
          cut = tokens() >= cut_after;
          return !cut;
        });
    if (!reply.resume_token.empty()) token_ = reply.resume_token;
    if (cut || done_) return;
    if (reply.status >= 400 && reply.status != 503) {
      error_ = reply.body;
      return;
    }
    if (!stay) router_ = (router_ + 1) % RouterPair::kRouters;
    std::this_thread::sleep_for(milliseconds(50));
  }
}

size_t ResumingClient::tokens() const {
  size_t sum = 0;
  for (const auto& [index, ids] : ids_) sum += ids.size();
  return sum;
}

void ResumingClient::Take(const ServerSentEvent& event) {
  if (event.data == "[DONE]") {
    done_ = true;
    return;
  }
  const Json chunk = Json::parse(event.data);
  if (chunk.contains("error")) return;
  if (!event.id.empty()) {
    last_id_ = std::string(event.id);
    EXPECT_TRUE(seen_.insert(last_id_).second) << "event " << last_id_ << " came twice";
  }
  for (const Json& choice : chunk.at("choices")) {
    const int index = choice.at("index");
    text_[index] += choice.value("text", "");
    for (const Json& id : choice.value("token_ids", Json::array())) ids_[index].push_back(id);
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) ++finishes_;
  }
}

}  // namespace winnow::e2e
