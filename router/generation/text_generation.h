#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <set>

#include "common/metrics/request_metrics.h"
#include "common/selection/head_profile.h"
#include "router/dispatch/token_stream.h"
#include "router/generation/generation.h"
#include "router/generation/request_record.h"
#include "router/generation/request_span.h"
#include "router/generation/text_decoder.h"
#include "router/tasks/timer_queue.h"

namespace winnow {

struct TextGenerationOptions {
  std::string cluster = {};          // whose resume tokens these are
  std::set<uint32_t> eos_token_ids;  // end an output silently, unless the request ignores them
  // Of the served model, checked against its shape; may be absent. Every request's selection is resolved with it here,
  // so that all its attempts, on whatever rank, have the same budgets by head.
  std::shared_ptr<const HeadProfile> head_profile;
  // Of a model with sliding windows (common/selection/window_layers.h); else empty.
  std::vector<uint32_t> windows = {};
  int num_kv_heads = 0;
  uint32_t index_top_k = 0;           // of a model that brings an indexer (common/selection/indexer_spec.h)
  RequestMetrics* metrics = nullptr;  // may be absent; must outlive the TextGeneration's handles
  RequestTracing tracing;             // its sink must outlive the TextGeneration's handles
  // Called once for each generation that has ended, refused and given up ones too, from any thread; may be absent.
  std::function<void(const RequestRecord&)> on_end;
};

// Generation over token streams: one stream per sample, all of one group and one seed, each with its own text and stop
// strings. A resumable one has a token that carries all that is needed to go on with it; this keeps nothing of it once
// its handle is gone.
//
// The callbacks of one generation come from a strand of its own, on threads of the TokenGenerator or the timers, never
// on the thread that is in Start; but they may come before Start has returned.
class TextGeneration final : public Generation {
 public:
  // All must outlive the handles.
  TextGeneration(TextGenerationOptions options, TokenGenerator* generator, const TextDecoderFactory* decoders,
                 TimerQueue* timers);

  absl::StatusOr<std::unique_ptr<GenerationHandle>> Start(GenerationInput input, GenerationObserver* observer) override;
  absl::Status Abort(const std::string& resume_token, const Caller& caller) override;

 private:
  const TextGenerationOptions options_;
  TokenGenerator* const generator_;
  const TextDecoderFactory* const decoders_;
  TimerQueue* const timers_;
  std::atomic<uint64_t> next_group_{1};
};

}  // namespace winnow
