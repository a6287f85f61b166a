#include "cache_rank/select/device/select_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/selection/presets.h"

namespace winnow {
namespace {

using Kind = SelectAction::Kind;

class SelectOrderTest : public testing::TestWithParam<std::tuple<const char*, int, uint32_t>> {
 protected:
  SelectOrderTest() : spec_(FindPreset(std::get<0>(GetParam())).value()), num_layers_(std::get<1>(GetParam())) {
    spec_.lookahead = std::get<2>(GetParam());
    order_ = SelectOrder(spec_, num_layers_);
  }
  // Where an action stands; the order's end when nowhere.
  size_t Find(Kind kind, int layer) const {
    return std::find_if(order_.begin(), order_.end(),
                        [&](const SelectAction& a) { return a.kind == kind && a.layer == layer; }) -
           order_.begin();
  }
  int Count(Kind kind, int layer) const {
    return static_cast<int>(std::count_if(order_.begin(), order_.end(),
                                          [&](const SelectAction& a) { return a.kind == kind && a.layer == layer; }));
  }

  SelectionSpec spec_;
  const int num_layers_;
  std::vector<SelectAction> order_;
};

TEST_P(SelectOrderTest, EveryLayerIsSelectedPushedAndAppendedOnce) {
  for (int layer = 0; layer < num_layers_; ++layer) {
    for (const Kind kind : {Kind::kSelect, Kind::kPush, Kind::kAppend, Kind::kWaitRows}) {
      EXPECT_EQ(Count(kind, layer), 1) << "layer " << layer << " kind " << static_cast<int>(kind);
    }
  }
}

TEST_P(SelectOrderTest, NothingIsPushedBeforeThePlanHasBegun) {
  const size_t begins = std::min(Find(Kind::kWaitHidden, 0), Find(Kind::kWaitRows, 0));
  for (int layer = 0; layer < num_layers_; ++layer) EXPECT_GT(Find(Kind::kPush, layer), begins) << layer;
}

TEST_P(SelectOrderTest, QueriesComeBehindWhatTheyAreMadeOf) {
  for (size_t i = 0; i < order_.size(); ++i) {
    const SelectAction& action = order_[i];
    if (action.kind == Kind::kQueriesOfOwn) {
      EXPECT_LT(Find(Kind::kWaitRows, action.layer), i);
    }
    if (action.kind == Kind::kQueriesFromHidden) {
      EXPECT_LT(Find(Kind::kWaitHidden, action.hidden_layer), i);
      EXPECT_EQ(action.hidden_layer + static_cast<int>(spec_.lookahead), action.layer);
    }
    if (action.kind == Kind::kSelect) {
      EXPECT_EQ(order_[i - 1].layer, action.layer);
    }
    if (action.kind == Kind::kPush) {
      EXPECT_LT(Find(Kind::kSelect, action.layer), i);
    }
  }
}

TEST_P(SelectOrderTest, NoDeltaWaitsForRowsThatComeBehindItsAttention) {
  // Rows and residuals of a layer come only when attention of all layers below it has had its delta.
  for (size_t i = 0; i < order_.size(); ++i) {
    if (order_[i].kind != Kind::kWaitRows && order_[i].kind != Kind::kWaitHidden) continue;
    for (int layer = 0; layer < order_[i].layer; ++layer) {
      EXPECT_LT(Find(Kind::kPush, layer), i) << "the delta of layer " << layer;
    }
  }
}

TEST_P(SelectOrderTest, ADeltaIsPushedBeforeItsPlaceIsWrittenAnew) {
  // Deltas of even and odd layers have a place each.
  int waiting[2] = {-1, -1};
  for (const SelectAction& action : order_) {
    int& layer = waiting[action.layer % 2];
    if (action.kind == Kind::kSelect) {
      EXPECT_EQ(layer, -1) << "written anew for layer " << action.layer;
      layer = action.layer;
    }
    if (action.kind == Kind::kPush) {
      EXPECT_EQ(layer, action.layer);
      layer = -1;
    }
  }
}

TEST_P(SelectOrderTest, TheFirstLayersInboxIsTakenBeforeTheLastDelta) {
  EXPECT_LT(Find(Kind::kAppend, 0), Find(Kind::kPush, num_layers_ - 1));
}

INSTANTIATE_TEST_SUITE_P(, SelectOrderTest,
                         testing::Combine(testing::Values("winnow", "depth", "async-token", "fixed"),
                                          testing::Values(1, 2, 3, 40), testing::Values(1u, 2u, 4u)));

TEST(SelectOrder, DepthSelectsALayerAheadOfItsRows) {
  const std::vector<SelectAction> order = SelectOrder(FindPreset("depth").value(), 3);
  const std::vector<SelectAction> expected = {{Kind::kWaitRows, 0},
                                              {Kind::kQueriesOfOwn, 0},
                                              {Kind::kSelect, 0},
                                              {Kind::kPush, 0},
                                              {Kind::kAppend, 0},
                                              {Kind::kWaitHidden, 0},
                                              {Kind::kQueriesFromHidden, 1, 0},
                                              {Kind::kSelect, 1},
                                              {Kind::kPush, 1},
                                              {Kind::kWaitHidden, 1},
                                              {Kind::kQueriesFromHidden, 2, 1},
                                              {Kind::kSelect, 2},
                                              {Kind::kPush, 2},
                                              {Kind::kWaitRows, 1},
                                              {Kind::kAppend, 1},
                                              {Kind::kWaitRows, 2},
                                              {Kind::kAppend, 2}};
  EXPECT_EQ(order, expected);
}

TEST(SelectOrder, NothingIsSelectedNorKeptOfLayersWithASlidingWindow) {
  const std::vector<uint32_t> windows = {32, 0, 32, 0, 32};
  for (const char* preset : {"depth", "exact-token", "async-token"}) {
    for (const SelectAction& action : SelectOrder(FindPreset(preset).value(), 5, windows)) {
      if (action.kind == Kind::kWaitHidden || action.kind == Kind::kWaitRows) continue;
      EXPECT_EQ(windows[static_cast<size_t>(action.layer)], 0u) << preset << ", layer " << action.layer;
    }
    std::vector<SelectAction> all = SelectOrder(FindPreset(preset).value(), 5);
    std::erase_if(all, [&](const SelectAction& action) {
      const bool waits = action.kind == Kind::kWaitHidden || action.kind == Kind::kWaitRows;
      return !waits && windows[static_cast<size_t>(action.layer)] > 0;
    });
    EXPECT_EQ(SelectOrder(FindPreset(preset).value(), 5, windows), all) << preset;
  }
}

}  // namespace
}  // namespace winnow
