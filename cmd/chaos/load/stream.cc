#include "cmd/chaos/load/stream.h"

#include <algorithm>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "cmd/chaos/cluster/wait.h"
#include "tools/load/http_client.h"

namespace winnow::chaos {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

// A client's side of one answer, over as many connections as it takes.
class Reader {
 public:
  Reader(const Request& request, const StreamOptions& options, size_t router)
      : body_(request.body), samples_(request.samples), options_(options), router_(router) {
    if (options_.resumable) body_["winnow"]["resumable"] = true;
  }

  Answer Read() {
    answer_.sent = Clock::now();
    const Clock::time_point until = answer_.sent + options_.patience;
    do {
      const HttpReply reply = Connect(until);
      answer_.status = reply.status;
      if (!reply.resume_token.empty()) token_ = reply.resume_token;
      if (answer_.done || left_) break;
      answer_.error =
          event_error_.empty() ? absl::StrCat("HTTP ", reply.status, ": ", reply.body.substr(0, 300)) : event_error_;
      if (!GoesOn(reply)) break;
    } while (Clock::now() < until && !options_.stop.stop_requested());
    answer_.ended = Clock::now();
    if (answer_.done) CheckEnd();
    return std::move(answer_);
  }

 private:
  HttpReply Connect(Clock::time_point until) {
    HttpHeaders headers;
    if (!token_.empty()) headers.emplace_back("Winnow-Resume", token_);
    if (options_.deadline.count() > 0) {
      headers.emplace_back("x-request-timeout-ms", absl::StrCat(options_.deadline.count()));
    }
    if (!last_id_.empty()) headers.emplace_back("Last-Event-ID", last_id_);
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    const HttpClient client({.address = options_.routers[router_ % options_.routers.size()],
                             .patience = std::max(left, milliseconds(1)),
                             .api_key = options_.api_key,
                             .tls_ca = {},
                             .headers = std::move(headers)});
    event_error_.clear();
    resumes_ = !token_.empty();
    return client.StreamEvents(
        "/v1/completions", body_,
        [this](const ServerSentEvent& event) {
          Take(event);
          left_ = options_.leave && options_.leave(answer_);
          return !left_;
        },
        options_.stop);
  }

  // Whether it asks once more, and after which wait.
  bool GoesOn(const HttpReply& reply) {
    const bool accepted = !token_.empty() || heard_;
    const bool refused = reply.status == 429 || reply.status == 503;
    milliseconds wait(50);
    if (accepted) {
      if (token_.empty() || (reply.status >= 400 && reply.status != 503)) return false;
      ++router_;
    } else {
      // Nobody has taken it: with no answer at all only a client that may resume knows that.
      if (!refused && !(reply.status == 0 && options_.resumable)) return false;
      ++answer_.refused;
      answer_.retry_after_s = reply.retry_after_s;
      if (!options_.again) return false;
      if (reply.retry_after_s > 0) wait = std::chrono::seconds(reply.retry_after_s);
      ++router_;
    }
    return SleepFor(wait, options_.stop);
  }

  void Take(const ServerSentEvent& event) {
    heard_ = true;
    answer_.resumed += std::exchange(resumes_, false);
    if (answer_.done) return Breach("an event came behind [DONE]");
    if (event.data == "[DONE]") {
      answer_.done = true;
      return;
    }
    const Json chunk = Json::parse(event.data, nullptr, /*allow_exceptions=*/false);
    if (!chunk.is_object()) return Breach("an event is no JSON object");
    if (chunk.contains("error")) {
      event_error_ = chunk["error"].dump().substr(0, 300);
      return;
    }
    if (!event.id.empty()) {
      last_id_ = std::string(event.id);
      if (!ids_seen_.insert(last_id_).second) Breach("event " + last_id_ + " came twice");
    }
    if (const Json usage = chunk.value("usage", Json()); usage.is_object()) TakeUsage(usage);
    uint32_t tokens = 0;
    for (const Json& part : chunk.value("choices", Json::array())) tokens += TakeChoice(part);
    if (tokens > 0) answer_.arrivals.push_back({Clock::now(), tokens});
  }

  // Returns how many tokens it has.
  uint32_t TakeChoice(const Json& part) {
    Choice& choice = answer_.choices[part.value("index", 0)];
    const Json ids = part.value("token_ids", Json());
    const bool has_tokens = ids.is_array() && !ids.empty();
    if (has_tokens && !choice.finish_reason.empty()) Breach("a token came behind the end of its sample");
    if (has_tokens) {
      for (const Json& id : ids) choice.ids.push_back(id.get<uint32_t>());
    }
    if (part.contains("text") && part["text"].is_string()) choice.text += part["text"].get<std::string>();
    if (part.contains("finish_reason") && part["finish_reason"].is_string()) {
      if (!choice.finish_reason.empty()) Breach("a sample ended twice");
      choice.finish_reason = part["finish_reason"].get<std::string>();
    }
    return has_tokens ? static_cast<uint32_t>(ids.size()) : 0;
  }

  void TakeUsage(const Json& usage) {
    completion_tokens_ = usage.value("completion_tokens", size_t{0});
    const Json own = usage.value("winnow", Json());
    if (!own.is_object()) return;
    const Json told = own.value("not_identical", Json()), reattached = own.value("reattach_count", Json());
    answer_.not_identical = told.is_boolean() && told.get<bool>();
    if (reattached.is_number()) answer_.reattached = reattached.get<int>();
  }

  void CheckEnd() {
    size_t tokens = 0;
    for (const auto& [index, choice] : answer_.choices) {
      tokens += choice.ids.size();
      if (choice.finish_reason.empty()) Breach(absl::StrCat("sample ", index, " has no end"));
    }
    if (static_cast<int>(answer_.choices.size()) != samples_) {
      Breach(absl::StrCat(answer_.choices.size(), " samples in place of ", samples_));
    }
    if (tokens != completion_tokens_) {
      Breach(absl::StrCat(tokens, " tokens came, and usage counts ", completion_tokens_));
    }
  }

  void Breach(std::string what) {
    if (answer_.breach.empty()) answer_.breach = std::move(what);
  }

  Json body_;
  const int samples_;
  const StreamOptions& options_;
  size_t router_;
  Answer answer_;
  std::string token_, last_id_, event_error_;
  std::set<std::string> ids_seen_;
  size_t completion_tokens_ = 0;
  bool heard_ = false;    // an event of the answer
  bool resumes_ = false;  // this connection, and has not heard anything yet
  bool left_ = false;
};

}  // namespace

Answer ReadAnswer(const Request& request, const StreamOptions& options, size_t first_router) {
  return Reader(request, options, first_router).Read();
}

std::vector<Answer> ReadTogether(const std::vector<Request>& requests, const StreamOptions& options,
                                 milliseconds spread, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Answer> answers(requests.size());
  std::vector<std::jthread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    const milliseconds wait(random() % static_cast<uint64_t>(spread.count() + 1));
    clients.emplace_back([&, i, wait] {
      if (SleepFor(wait, options.stop)) answers[i] = ReadAnswer(requests[i], options, i);
    });
  }
  clients.clear();
  return answers;
}

}  // namespace winnow::chaos
