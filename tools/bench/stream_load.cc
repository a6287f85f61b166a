#include "tools/bench/stream_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "common/base/check.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

struct RawStream {
  double sent_s = 0;
  std::vector<std::pair<double, std::string>> events;
  HttpReply reply;
  bool given_up = false;
};

absl::StatusOr<TimedStream> Parse(const RawStream& raw, size_t max_tokens) {
  if (raw.reply.status != 200) return absl::UnavailableError(absl::StrCat(raw.reply.status, " ", raw.reply.body));
  TimedStream stream;
  stream.sent_s = raw.sent_s;
  for (const auto& [time_s, data] : raw.events) {
    const e2e::Json event = e2e::Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) continue;  // [DONE]
    if (event.contains("error")) return absl::InternalError(data);
    for (const e2e::Json& choice : event.value("choices", e2e::Json::array())) {
      const auto ids = choice.find("token_ids");
      if (ids != choice.end() && ids->is_array()) stream.token_s.insert(stream.token_s.end(), ids->size(), time_s);
    }
    if (event.contains("usage") && event["usage"].is_object()) {
      e2e::Completion completion;
      completion.usage = event["usage"];
      stream.hit_ratio = completion.Stat("hit_ratio");
      stream.captured_mass = completion.Stat("captured_mass_mean");
      stream.streamed_bytes = completion.Stat("streamed_bytes");
    }
  }
  if (!raw.given_up && stream.token_s.size() != max_tokens) {
    return absl::InternalError(absl::StrCat(stream.token_s.size(), " tokens came instead of ", max_tokens));
  }
  return stream;
}

}  // namespace

absl::StatusOr<std::vector<TimedStream>> RunStreams(const std::string& http_address,
                                                    const std::vector<e2e::TokenIds>& prompts, int max_tokens) {
  std::vector<StreamRequest> requests;
  for (const e2e::TokenIds& prompt : prompts) requests.push_back({.prompt = prompt, .max_tokens = max_tokens});
  return RunStreams(http_address, requests);
}

absl::StatusOr<std::vector<TimedStream>> RunStreams(const std::string& http_address,
                                                    const std::vector<StreamRequest>& requests) {
  const HttpClient client(http_address, std::chrono::minutes(5));
  std::vector<RawStream> raw(requests.size());
  const auto start = Clock::now();
  const auto now_s = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<std::atomic<size_t>> received(requests.size());
  std::atomic<size_t> late_ones = std::count_if(requests.begin(), requests.end(),
                                                [](const StreamRequest& request) { return request.after_events > 0; });
  std::atomic<bool> one_ended = false;  // then nobody waits for its events
  const auto may_begin = [&](size_t events) {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].after_events == 0 && received[i] < events) return one_ended.load();
    }
    return true;
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < requests.size(); ++i) {
      threads.emplace_back([&, i] {
        const StreamRequest& wanted = requests[i];
        e2e::Json request = e2e::GreedyRequest(wanted.prompt, wanted.max_tokens);
        request["stream"] = true;
        request["stream_options"] = {{"include_usage", true}};
        raw[i].events.reserve(wanted.max_tokens + 8);
        while (wanted.after_events > 0 && !may_begin(wanted.after_events)) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        size_t since_end = 0;
        raw[i].sent_s = now_s();
        raw[i].reply = client.Stream("/v1/completions", request, [&](std::string_view data) {
          raw[i].events.emplace_back(now_s(), data);
          received[i] = raw[i].events.size();
          raw[i].given_up = wanted.after_end_events > 0 && late_ones == 0 && ++since_end > wanted.after_end_events;
          return !raw[i].given_up;
        });
        one_ended = true;
        if (wanted.after_events > 0) --late_ones;
      });
    }
  }
  std::vector<TimedStream> streams;
  for (size_t i = 0; i < raw.size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(TimedStream stream, Parse(raw[i], requests[i].max_tokens));
    streams.push_back(std::move(stream));
  }
  return streams;
}

std::vector<double> DecodeWindows(const std::vector<TimedStream>& streams, size_t skip_tokens, int windows) {
  double begin = 0, end = 1e30;
  for (const TimedStream& stream : streams) {
    WINNOW_CHECK(stream.token_s.size() > skip_tokens);
    begin = std::max(begin, stream.token_s[skip_tokens]);
    end = std::min(end, stream.token_s.back());
  }
  if (end <= begin) return {};  // the first was through before the last began
  const double length = (end - begin) / windows;
  std::vector<double> rates(windows);
  for (const TimedStream& stream : streams) {
    for (double time : stream.token_s) {
      if (time > begin && time <= end) {
        rates[std::min(windows - 1, static_cast<int>((time - begin) / length))] += 1 / length;
      }
    }
  }
  return rates;
}

DecodeRate Summarize(std::vector<double> windows) {
  if (windows.empty()) return {};
  std::sort(windows.begin(), windows.end());
  return {windows[windows.size() / 2], windows.front(), windows.back()};
}

}  // namespace winnow
