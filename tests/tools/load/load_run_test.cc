#include "tools/load/load_run.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <thread>

namespace winnow {
namespace {

// Notes what is sent; `enter` and `leave` show how many requests are under way at once.
class FakeClient final : public LoadClient {
 public:
  void Run(const LoadRequest& request, const std::function<double()>& now_s, RequestTimes& times) override {
    {
      const std::lock_guard lock(mutex_);
      sent.push_back(request);
      most = std::max(most, ++running_);
    }
    times.sent_s = now_s();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    times.token_s.assign(request.output_tokens, now_s());
    times.end_s = now_s();
    const std::lock_guard lock(mutex_);
    --running_;
  }
  std::vector<LoadRequest> sent;
  int most = 0;

 private:
  std::mutex mutex_;
  int running_ = 0;
};

std::vector<PlannedRequest> Planned(std::vector<double> times_s) {
  std::vector<PlannedRequest> requests;
  for (const double at_s : times_s) {
    requests.push_back({.at_s = at_s, .prompt = {{requests.size(), 7}}, .output_tokens = 3});
  }
  return requests;
}

TEST(RunLoad, SendsEveryRequestOnce) {
  FakeClient client;
  const std::vector<PlannedRequest> requests = Planned(std::vector<double>(50, 0));
  const std::vector<RequestTimes> times =
      RunLoad(requests, {.concurrency = 4, .first_token_id = 5, .num_token_ids = 100}, client);
  ASSERT_EQ(times.size(), 50u);
  ASSERT_EQ(client.sent.size(), 50u);
  EXPECT_LE(client.most, 4);
  std::vector<std::vector<uint32_t>> sent, planned;
  for (const LoadRequest& request : client.sent) sent.push_back(request.token_ids);
  for (const PlannedRequest& request : requests) planned.push_back(PromptTokenIds(request.prompt, 5, 100));
  EXPECT_THAT(sent, testing::UnorderedElementsAreArray(planned));
  for (const RequestTimes& one : times) EXPECT_EQ(one.token_s.size(), 3u);
}

TEST(RunLoad, ARequestToStopEndsItWithWhatHadEnded) {
  FakeClient client;
  std::stop_source stop;
  size_t last = 0;
  const std::vector<RequestTimes> times = RunLoad(Planned({0, 0, 0, 3600}),
                                                  {.concurrency = 1,
                                                   .num_token_ids = 10,
                                                   .on_ended =
                                                       [&](size_t ended) {
                                                         if ((last = ended) == 2) stop.request_stop();
                                                       },
                                                   .stop = stop.get_token()},
                                                  client);
  EXPECT_EQ(last, 2u);
  ASSERT_EQ(times.size(), 2u);
  for (const RequestTimes& one : times) EXPECT_EQ(one.token_s.size(), 3u);
}

TEST(RunLoad, ARequestToStopDoesNotWaitForTheTimeOfTheNext) {
  FakeClient client;
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  EXPECT_TRUE(RunLoad(Planned({3600, 3600}), {.concurrency = 2, .num_token_ids = 10, .stop = stop.get_token()}, client)
                  .empty());
}

TEST(RunLoad, NothingIsSentBeforeItsTime) {
  FakeClient client;
  const std::vector<RequestTimes> times =
      RunLoad(Planned({0.01, 0.02, 0.03}), {.concurrency = 2, .first_token_id = 0, .num_token_ids = 10}, client);
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(times[i].due_s, 0.01 * static_cast<double>(i + 1));
    EXPECT_GE(times[i].sent_s, times[i].due_s);
  }
}

}  // namespace
}  // namespace winnow
