#include "cache_rank/device/select_order.h"

#include <algorithm>

#include "cache_rank/predictor/from_past.h"

namespace winnow {
namespace {

using Kind = SelectAction::Kind;
constexpr int kPastLayersAhead = 2;

class OrderBuilder {
 public:
  explicit OrderBuilder(int num_layers) : num_layers_(num_layers) {}

  void Wait(Kind kind, int layer) { actions_.push_back({kind, layer}); }
  void Select(Kind queries, int layer, int hidden_layer = 0) {
    if (layer >= num_layers_) return;
    actions_.push_back({queries, layer, hidden_layer});
    actions_.push_back({Kind::kSelect, layer});
    actions_.push_back({Kind::kPush, layer});
  }
  void Append(int layer) { actions_.push_back({Kind::kAppend, layer}); }
  std::vector<SelectAction> Take() { return std::move(actions_); }

 private:
  const int num_layers_;
  std::vector<SelectAction> actions_;
};

}  // namespace

std::vector<SelectAction> SelectOrder(const SelectionSpec& spec, int num_layers) {
  OrderBuilder order(num_layers);
  const int lookahead = static_cast<int>(spec.lookahead);
  if (PredictsFromPast(spec.predictor)) {
    order.Wait(Kind::kWaitHidden, 0);  // the plan has begun
    for (int layer = 0; layer < std::min(kPastLayersAhead, num_layers - 1); ++layer) {
      order.Select(Kind::kQueriesFromPast, layer);
    }
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    const bool own = SelectsWithOwnQuery(spec, layer);
    const bool looks_ahead = spec.predictor == Predictor::kDepth && layer + lookahead < num_layers;
    // The first layers' own deltas are waited for at once, those ahead are not.
    if (looks_ahead && !own) {
      order.Wait(Kind::kWaitHidden, layer);
      order.Select(Kind::kQueriesFromHidden, layer + lookahead, layer);
    }
    order.Wait(Kind::kWaitRows, layer);
    const bool is_last = layer == num_layers - 1;  // also the first, perhaps
    if (is_last) order.Append(layer);
    if (own) order.Select(Kind::kQueriesOfOwn, layer);
    if (!is_last) order.Append(layer);
    if (looks_ahead && own) {
      order.Wait(Kind::kWaitHidden, layer);
      order.Select(Kind::kQueriesFromHidden, layer + lookahead, layer);
    }
    if (PredictsFromPast(spec.predictor)) {
      // With fewer layers than that the last one still comes after the first append.
      const int ahead = std::min(kPastLayersAhead, num_layers - 1);
      order.Select(Kind::kQueriesFromPast, layer + ahead);
    }
  }
  return order.Take();
}

}  // namespace winnow
