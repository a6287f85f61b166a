// Selections in place by another index than that of the rank's own selection: what they select is what they select on
// a rank of their own, here on a GPU made of host memory (tests/support/host_gpu).
#include <gmock/gmock.h>

#include "common/selection/presets.h"
#include "tests/inference_rank/backend/device_local_step_fixture.h"

namespace winnow::test {
namespace {

using testing::HasSubstr;

constexpr int kSteps = 40;  // past the ends of pages, of blocks and of a slot page

class DeviceLocalIndexTest : public DeviceLocalStepTest {
 protected:
  static SelectionSpec Of(const char* preset, uint32_t budget) {
    SelectionSpec spec = FindPreset(preset).value();
    spec.budget_tokens = budget;
    spec.recent_tokens = 32;
    spec.min_candidate_tokens = 24;
    return spec;
  }
  struct Request {
    SelectionSpec spec;
    uint32_t seed = 0, prompt = 0;
  };
  struct Decoded {
    std::vector<uint32_t> tokens;
    std::vector<float> logits;  // of the last step
    bool operator==(const Decoded&) const = default;
  };

  // All in one batch of the rank at hand, request i in row first_row + i, two steps under way at a time.
  std::vector<Decoded> Decode(const std::vector<Request>& requests, int first_row = 0) {
    std::vector<Stream> streams;
    for (const Request& request : requests) streams.push_back(NewStream(request.seed, request.prompt, request.spec));
    const auto row_of = [&](size_t i) { return first_row + static_cast<int>(i); };
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_TRUE(client().Serves(requests[i].spec).ok()) << client().Serves(requests[i].spec);
      Sit(row_of(i), streams[i], requests[i].spec);
    }
    std::vector<Decoded> decoded(streams.size());
    for (int step = 0; step <= kSteps; ++step) {
      std::vector<StepRow> rows;
      for (size_t i = 0; i < streams.size() && step < kSteps; ++i) {
        StepRow row{.row = row_of(i), .position = requests[i].prompt + step, .draw = TokenDraw(), .wants_logits = true};
        if (step == 0) row.token_id = streams[i].newest();
        rows.push_back(row);
      }
      if (step < kSteps) {
        client().Plan(rows);
        EXPECT_TRUE(client().Launch().ok() && client().Draw({}).ok());
      }
      if (step == 0) continue;
      EXPECT_TRUE(client().Complete().ok());
      for (size_t i = 0; i < streams.size(); ++i) {
        decoded[i].tokens.push_back(client().drawn_token(row_of(i)));
        const std::span<float> logits = client().logits(row_of(i));
        decoded[i].logits.assign(logits.begin(), logits.end());
      }
    }
    for (size_t i = 0; i < streams.size(); ++i) client().ClearRow(row_of(i));
    return decoded;
  }
  // Each alone, on a rank whose own selection it is.
  std::vector<Decoded> OnRanksOfTheirOwn(const std::vector<Request>& requests) {
    std::vector<Decoded> decoded;
    for (const Request& request : requests) {
      Start(request.spec);
      decoded.push_back(Decode({request}).front());
    }
    return decoded;
  }
  std::string Refusal(const SelectionSpec& spec) { return std::string(client().Serves(spec).message()); }
};

TEST_P(DeviceLocalIndexTest, BoundsOfPagesLieInThePlaceOf8BitKeys) {
  SelectionSpec by_pages_of_rows = Of("winnow", 24);  // keys as they are, of the best pages
  by_pages_of_rows.key_copy = KeyCopy::kNone;
  by_pages_of_rows.score_all_below_tokens = 0;
  const std::vector<Request> requests = {{Of("quest", 20), 1, 150},  {Of("sparseserve", 24), 2, 140},
                                         {Of("psa", 40), 3, 130},    {Of("exact-token", 20), 4, 97},
                                         {Of("winnow", 24), 5, 135}, {by_pages_of_rows, 6, 120},
                                         {Of("quest", 33), 7, 60}};
  const std::vector<Decoded> expected = OnRanksOfTheirOwn(requests);
  EXPECT_NE(expected[0], expected[1]);
  Start(Of("winnow", 64));
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(Decode({requests[i]}).front(), expected[i]) << "alone, where others lay: request " << i;
  }
  // Four kinds at a time, in rows of either order.
  for (const std::vector<size_t>& together : {std::vector<size_t>{4, 0, 1, 2, 6}, {2, 1, 0, 6, 4}, {5, 3, 2, 4}}) {
    std::vector<Request> batch;
    for (const size_t i : together) batch.push_back(requests[i]);
    batch.push_back({spec_, 8, 70});
    const std::vector<Decoded> decoded = Decode(batch);
    for (size_t i = 0; i < together.size(); ++i) {
      EXPECT_EQ(decoded[i], expected[together[i]]) << "request " << together[i] << " beside others";
    }
  }
}

// A rank with bounds of pages has room for others that are no more, and none for 8-bit keys.
TEST_P(DeviceLocalIndexTest, BoundsOfPagesLieInThePlaceOfOthers) {
  SelectionSpec wide = Of("quest", 30);
  wide.page_tokens = 32;
  const std::vector<Request> requests = {
      {Of("sparseserve", 24), 2, 140}, {wide, 3, 130}, {Of("quest", 20), 1, 150}, {Of("psa", 40), 5, 120}};
  const std::vector<Decoded> expected = OnRanksOfTheirOwn(requests);
  Start(Of("quest", 64));
  EXPECT_EQ(Decode(requests), expected);
  EXPECT_THAT(Refusal(Of("winnow", 24)), HasSubstr("8-bit keys"));
  Start(Of("sparseserve", 64));
  EXPECT_EQ(Decode({requests[1]}).front(), expected[1]);
  EXPECT_THAT(Refusal(Of("quest", 20)), HasSubstr("no room"));
  Start(Of("exact-token", 64));
  EXPECT_THAT(Refusal(Of("sparseserve", 20)), HasSubstr("no room"));
}

// Whoever reads the same index has one number, and whoever reads none has none.
TEST_P(DeviceLocalIndexTest, SpecificationsAreToldApartByTheIndexThatTheyRead) {
  SelectionSpec pages_of_keys = Of("winnow", 64);
  pages_of_keys.score_all_below_tokens = 0;
  Start(pages_of_keys);
  const auto index = [&](const SelectionSpec& spec) { return client().IndexOf(spec); };
  EXPECT_EQ(index(spec_), 0u);
  EXPECT_EQ(index(Of("exact-token", 20)), 0u);
  EXPECT_EQ(index(pages_of_keys), index(Of("winnow", 20)));
  EXPECT_EQ(index(pages_of_keys), index(Of("quest", 20))) << "its bounds lie beside the keys";
  EXPECT_EQ(index(Of("psa", 20)), index(Of("sparseserve", 20)));
  EXPECT_NE(index(Of("psa", 20)), index(Of("quest", 20)));
  EXPECT_NE(index(Of("psa", 20)), 0u);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceLocalIndexTest, kBf16OnOneGpuOrTwo, NameOf);

}  // namespace
}  // namespace winnow::test
