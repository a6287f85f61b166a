#pragma once
#include <cmath>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "cache_rank/select/predictor/from_past.h"
#include "cache_rank/select/predictor/regression.h"
#include "common/selection/attended_set.h"
#include "inference_rank/sequence/sampler.h"
#include "model/head_parts.h"
#include "tests/inference_rank/backend/device_local_step_fixture.h"

namespace winnow::test {

// Steps of specifications beside each other, and what each of these says by itself.
class LocalSelectionTest : public DeviceLocalStepTest {
 protected:
  // Selects by brute force as the specification says, from the keys that the stream has, and attends to that by frames.
  class SelectingKv final : public DecodeKv {
   public:
    SelectingKv(LocalSelectionTest& test, Stream& stream, const SelectionSpec& spec)
        : test_(test), stream_(stream), spec_(spec), queries_(test.layout_.num_layers) {}
    int Lookahead() const override { return spec_.predictor == Predictor::kDepth ? 1 : 0; }
    void Publish(const DecodeLayerOutput& output) override {
      const KvLayout& layout = test_.layout_;
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        stream_.set->WriteRow(output.layer, head, stream_.position, output.kv_rows + head * layout.row_bytes());
      }
      const size_t floats = test_.query_floats();
      const auto keep = [&](int layer, const float* queries) {
        if (queries_[layer].empty()) queries_[layer] = Rotated(queries, stream_.position);
      };
      if (PredictsFromPast(spec_.predictor)) {
        std::vector<std::vector<float>>& past = stream_.past_queries[output.layer];
        queries_[output.layer] = FromPast(past);
        past.emplace_back(output.q_pre_rope, output.q_pre_rope + floats);
      }
      keep(output.layer, output.q_pre_rope);
      if (output.prediction != nullptr) keep(output.prediction_layer, output.prediction);
    }
    void AwaitSlots(int layer, SlotLists& lists) override {
      const int group = test_.layout_.group_size(), lists_per_kv_head = ListsPerKvHead(spec_, group);
      for (int i = 0; i < test_.layout_.num_kv_heads * lists_per_kv_head; ++i) {
        const int head = i / lists_per_kv_head, heads = group / lists_per_kv_head;
        std::vector<uint32_t>& slots = lists_.emplace_back();
        for (const uint32_t row : Attended(layer, head, i * heads, heads)) slots.push_back(SlotOf(layer, head, row));
        lists.Add(slots, heads);
      }
    }

   private:
    // Queries of all heads, as they are at a position.
    std::vector<float> Rotated(const float* queries, uint32_t position) const {
      const RopeTable& rope = test_.backend_->forward().rope();
      const int half = test_.layout_.head_dim / 2;
      std::vector<float> out(test_.query_floats());
      for (size_t head = 0; head < out.size(); head += 2 * half) {
        for (int i = 0; i < half; ++i) {
          const float angle = static_cast<float>(position) * rope.inv_freq[i];
          const float a = queries[head + i], b = queries[head + i + half];
          out[head + i] = a * std::cos(angle) - b * std::sin(angle);
          out[head + i + half] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
      return out;
    }
    // What the predictor makes of the queries before the position, rotated.
    std::vector<float> FromPast(const std::vector<std::vector<float>>& queries) const {
      const size_t count = std::min<size_t>(PastQueries(spec_), queries.size()), dim = test_.layout_.head_dim;
      const bool post_rope = spec_.predictor == Predictor::kTemporal && spec_.post_rope;
      std::vector<std::vector<float>> used(queries.end() - static_cast<ptrdiff_t>(count), queries.end());
      for (size_t i = 0; i < count && post_rope; ++i) {
        used[i] = Rotated(used[i].data(), stream_.position - static_cast<uint32_t>(count - i));
      }
      std::vector<float> predicted(test_.query_floats());
      for (size_t head = 0; head < predicted.size(); head += dim) {
        std::vector<const float*> past;
        for (const std::vector<float>& query : used) past.push_back(query.data() + head);
        PredictNext(spec_.temporal_variant, past, static_cast<int>(dim), predicted.data() + head);
      }
      return post_rope ? predicted : Rotated(predicted.data(), stream_.position);
    }
    // Keys of int8 are scored with a query that is rounded as they are.
    std::vector<float> AsScored(std::vector<float> query) const {
      if (test_.layout_.dtype != Dtype::kI8) return query;
      std::vector<int8_t> codes(query.size());
      const float scale = QuantizeInt8(query.data(), static_cast<int>(query.size()), codes.data());
      std::transform(codes.begin(), codes.end(), query.begin(), [scale](int8_t code) { return code * scale; });
      return query;
    }
    double Score(const std::vector<float>& query, int layer, int head, uint32_t row) const {
      const std::vector<float> key = test_.KeyIn(stream_.set->PlaceOfRow(layer, head, row));
      double score = 0;
      for (size_t d = 0; d < query.size(); ++d) score += double{query[d]} * key[d];
      return score / std::sqrt(static_cast<double>(query.size()));
    }
    // The greatest that a key between the least and the greatest elements of a page can score.
    double Bound(const std::vector<float>& query, int layer, int head, uint32_t page) const {
      double bound = 0;
      for (size_t d = 0; d < query.size(); ++d) {
        double greatest = -INFINITY;
        for (uint32_t row = page * spec_.page_tokens; row < (page + 1) * spec_.page_tokens; ++row) {
          greatest = std::max(greatest, double{query[d]} * test_.KeyIn(stream_.set->PlaceOfRow(layer, head, row))[d]);
        }
        bound += greatest;
      }
      return bound / std::sqrt(static_cast<double>(query.size()));
    }
    // Of rows or pages: the softmax over all of them below the position, by query head, summed.
    std::vector<double> Importance(int layer, int head, int first_query, int num_queries, bool of_pages) const {
      const int64_t dim = test_.layout_.head_dim;
      std::vector<double> importance(of_pages ? stream_.position / spec_.page_tokens : stream_.position);
      for (int q = first_query; q < first_query + num_queries; ++q) {
        const auto first = queries_[layer].begin() + q * dim;
        const std::vector<float> query = of_pages ? std::vector(first, first + dim) : AsScored({first, first + dim});
        std::vector<double> weights;
        for (uint32_t i = 0; i < importance.size(); ++i) {
          weights.push_back(std::exp(of_pages ? Bound(query, layer, head, i) : Score(query, layer, head, i)));
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (size_t i = 0; i < weights.size(); ++i) importance[i] += weights[i] / sum;
      }
      return importance;
    }
    // The rows of the greatest importance below the recent window, of whole units where pages are scored: those of the
    // greatest page, and what is not complete before any other.
    std::vector<uint32_t> Chosen(int layer, int head, int first_query, int num_queries) const {
      const uint32_t window = WindowStart(spec_, stream_.position), budget = HeadBudget(spec_, List(layer, head));
      std::vector<uint32_t> chosen;
      for (uint32_t row = spec_.sink_tokens; row < window; ++row) chosen.push_back(row);
      if (chosen.size() <= budget || stream_.position < spec_.dense_below_tokens) return chosen;
      if (budget == 0) return {};
      if (spec_.predictor == Predictor::kFixed) return {chosen.begin(), chosen.begin() + budget};
      const bool of_pages = spec_.scorer != Scorer::kToken;
      const uint32_t rows = of_pages ? spec_.page_tokens : 1;
      const uint32_t unit = spec_.scorer == Scorer::kHierarchical ? spec_.physical_page_tokens : rows;
      const std::vector<double> of_page = Importance(layer, head, first_query, num_queries, of_pages);
      std::vector<double> importance(window / unit + 1, INFINITY);
      for (uint32_t first = 0; first < window / rows * rows; first += rows) {
        double& of_unit = importance[first / unit];
        of_unit = first % unit == 0 ? of_page[first / rows] : std::max(of_unit, of_page[first / rows]);
      }
      std::stable_sort(chosen.begin(), chosen.end(),
                       [&](uint32_t a, uint32_t b) { return importance[a / unit] > importance[b / unit]; });
      chosen.resize(budget);
      std::sort(chosen.begin(), chosen.end());
      return chosen;
    }
    size_t List(int layer, int head) const { return test_.layout_.list(layer, head); }
    std::vector<uint32_t> Attended(int layer, int head, int first_query, int num_queries) const {
      const uint32_t position = stream_.position;
      std::vector<uint32_t>& chosen = stream_.chosen[{layer, first_query}];
      const uint32_t anchor = AnchorPosition(spec_, position, stream_.prompt), window = WindowStart(spec_, anchor);
      if (anchor == position) chosen = Chosen(layer, head, first_query, num_queries);
      std::vector<uint32_t> rows;
      for (uint32_t row = 0; row < std::min(spec_.sink_tokens, position + 1); ++row) rows.push_back(row);
      rows.insert(rows.end(), chosen.begin(), chosen.end());
      for (uint32_t row = window; row <= position; ++row) rows.push_back(row);
      return rows;
    }
    uint32_t SlotOf(int layer, int head, uint32_t row) const {
      const SlotPool& slots = *test_.slots_;
      const uint32_t first_slot = slots.first_slot(PartOf(test_.layout_, List(layer, head), slots.num_parts()));
      const auto* const place = static_cast<const std::byte*>(stream_.set->PlaceOfRow(layer, head, row));
      return first_slot + static_cast<uint32_t>((place - slots.row(first_slot)) / test_.layout_.row_bytes());
    }

    LocalSelectionTest& test_;
    Stream& stream_;
    const SelectionSpec& spec_;
    std::vector<std::vector<float>> queries_;  // by layer, rotated, that select
    std::deque<std::vector<uint32_t>> lists_;
  };

  std::vector<float> BySelecting(Stream& stream, const SelectionSpec& spec) {
    SelectingKv kv(*this, stream, spec);
    const uint32_t token = stream.newest();
    const std::span<float> logits = backend_->forward().DecodeByLayer({&token, 1}, {&stream.position, 1}, kv);
    ++stream.position;
    return {logits.begin(), logits.end()};
  }

  std::vector<uint32_t> TokensAlone(size_t seed, uint32_t prompt, const SelectionSpec& spec, int steps) {
    Stream stream = NewStream(seed, prompt, spec);
    for (int step = 0; step < steps; ++step) {
      stream.tokens.push_back(ArgMax(IsDense(spec) ? ByFrames(stream) : BySelecting(stream, spec)));
    }
    return stream.tokens;
  }

  // Decodes a stream of each specification, all together, and expects of each what it is alone. Steps at which masses
  // of a stream were measured go to `measured`.
  void ExpectAsAlone(const std::vector<SelectionSpec>& specs, const std::vector<uint32_t>& prompts, int steps,
                     std::vector<int>& measured) {
    std::vector<std::vector<uint32_t>> expected;
    std::vector<Stream> streams;
    for (size_t i = 0; i < specs.size(); ++i) {
      ASSERT_TRUE(client().Serves(specs[i]).ok()) << client().Serves(specs[i]);
      expected.push_back(TokensAlone(i, prompts[i], specs[i], steps));
      streams.push_back(NewStream(i, prompts[i], specs[i]));
    }
    for (size_t i = 0; i < specs.size(); ++i) Sit(static_cast<int>(i), streams[i], specs[i]);
    measured.assign(specs.size(), 0);
    const auto take = [&] {
      ASSERT_TRUE(client().Complete().ok());
      for (size_t i = 0; i < specs.size(); ++i) {
        const int row = static_cast<int>(i);
        streams[i].tokens.push_back(client().drawn_token(row));
        const StepSelection selection = client().selection(row);
        uint64_t lists = 0;
        for (const float mass : selection.captured_masses) {
          if (std::isnan(mass)) continue;
          ++lists;
          EXPECT_GT(mass, 0.05f);
          EXPECT_LE(mass, 1.0f);
        }
        measured[i] += lists > 0;
        EXPECT_EQ(selection.selected_rows, lists * specs[i].budget_tokens) << "stream " << i;
      }
    };
    for (int step = 0; step < steps; ++step) {
      std::vector<StepRow> rows;
      for (size_t i = 0; i < specs.size(); ++i) {
        StepRow row{.row = static_cast<int>(i), .position = prompts[i] + step, .draw = TokenDraw()};
        if (step == 0) row.token_id = streams[i].newest();
        rows.push_back(row);
      }
      client().Plan(rows);
      ASSERT_TRUE(client().Launch().ok() && client().Draw({}).ok());
      if (step > 0) take();
    }
    take();
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(streams[i].tokens, expected[i]) << "stream " << i;
    for (size_t i = 0; i < specs.size(); ++i) client().ClearRow(static_cast<int>(i));
  }
};

}  // namespace winnow::test
