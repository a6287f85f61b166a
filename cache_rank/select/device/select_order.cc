#include "cache_rank/select/device/select_order.h"

#include <algorithm>

#include "cache_rank/select/predictor/from_past.h"

namespace winnow {
namespace {

using Kind = SelectAction::Kind;
constexpr int kPastLayersAhead = 2;

class OrderBuilder {
 public:
  OrderBuilder(int num_layers, std::span<const uint32_t> windows) : num_layers_(num_layers), windows_(windows) {}

  void Wait(Kind kind, int layer) { actions_.push_back({kind, layer}); }
  void Select(Kind queries, int layer, int hidden_layer = 0) {
    if (Selects(layer)) actions_.push_back({queries, layer, hidden_layer});
    SelectWithoutQueries(layer);
  }
  void SelectWithoutQueries(int layer) {
    if (Selects(layer)) actions_.push_back({Kind::kSelect, layer});
  }
  void SelectAndPush(Kind queries, int layer, int hidden_layer = 0) {
    Select(queries, layer, hidden_layer);
    Push(layer);
  }
  void Push(int layer) {
    if (Selects(layer)) actions_.push_back({Kind::kPush, layer});
  }
  void Append(int layer) {
    if (Selects(layer)) actions_.push_back({Kind::kAppend, layer});
  }
  std::vector<SelectAction> Take() { return std::move(actions_); }

 private:
  bool Selects(int layer) const {
    return layer < num_layers_ && (windows_.empty() || windows_[static_cast<size_t>(layer)] == 0);
  }

  const int num_layers_;
  const std::span<const uint32_t> windows_;
  std::vector<SelectAction> actions_;
};

}  // namespace

std::vector<SelectAction> SelectOrder(const SelectionSpec& spec, int num_layers, std::span<const uint32_t> windows) {
  OrderBuilder order(num_layers, windows);
  const int lookahead = static_cast<int>(spec.lookahead);
  // With fewer layers than that the last one still comes after the first append.
  const int layers_ahead = std::min(kPastLayersAhead, num_layers - 1);
  if (PredictsFromPast(spec.predictor)) {
    // Selections may come before the plan has begun; what attention of the plan before reads must not be touched.
    for (int layer = 0; layer < layers_ahead; ++layer) order.Select(Kind::kQueriesFromPast, layer);
    order.Wait(Kind::kWaitHidden, 0);
    for (int layer = 0; layer < layers_ahead; ++layer) order.Push(layer);
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    const bool own = SelectsWithOwnQuery(spec, layer);
    const bool looks_ahead = spec.predictor == Predictor::kDepth && layer + lookahead < num_layers;
    // The first layers' own deltas are waited for at once, those ahead are not.
    if (looks_ahead && !own) {
      order.Wait(Kind::kWaitHidden, layer);
      order.SelectAndPush(Kind::kQueriesFromHidden, layer + lookahead, layer);
    }
    order.Wait(Kind::kWaitRows, layer);
    const bool is_last = layer == num_layers - 1;  // also the first, perhaps
    if (is_last) order.Append(layer);
    if (own) order.SelectAndPush(Kind::kQueriesOfOwn, layer);
    if (spec.predictor == Predictor::kFixed) {
      order.SelectWithoutQueries(layer);
      order.Push(layer);
    }
    if (!is_last) order.Append(layer);
    if (looks_ahead && own) {
      order.Wait(Kind::kWaitHidden, layer);
      order.SelectAndPush(Kind::kQueriesFromHidden, layer + lookahead, layer);
    }
    if (PredictsFromPast(spec.predictor)) order.SelectAndPush(Kind::kQueriesFromPast, layer + layers_ahead);
  }
  return order.Take();
}

}  // namespace winnow
