#pragma once
#include <memory>
#include <span>
#include <vector>

#include "inference_rank/step/decode_step.h"
#include "tools/bench/quality/answer_record.h"
#include "tools/bench/quality/hosted_cache_rank.h"
#include "tools/bench/quality/quality_model.h"
#include "tools/bench/quality/saved_prompt.h"
#include "tools/bench/quality/spec_choice.h"

namespace winnow {

// Decodes prompts under several specifications at once, teacher-forced: each specification is a sequence of its own on
// a real cache rank, a row of every decode step, and sees the right answer so far whatever it would have said. An
// answer with every argmax right is exactly the greedy answer that is right. Everything but the loop is the code that
// serves. One thread.
class ForcedDecoder {
 public:
  struct Options {
    int threads = 1;  // of the forward pass, and as many for scoring
    uint32_t chunk_tokens = 512;
    size_t rows = 16;               // specifications per decode step: bounds memory
    uint32_t max_positions = 4096;  // of the longest prompt with its answer
  };
  // `model` must outlive it.
  static absl::StatusOr<std::unique_ptr<ForcedDecoder>> Create(const QualityModel& model, const Options& options);

  // One record per specification, in their order, all but names of the prompt filled in.
  absl::StatusOr<std::vector<AnswerRecord>> Run(const TokenPrompt& prompt, std::span<const SpecChoice> specs);

 private:
  ForcedDecoder(const QualityModel& model, const Options& options);
  void OnFrame(ReceivedFrame frame);
  absl::Status Start(Sequence& sequence, const SavedPrompt& saved, SlotPool& slots);
  absl::StatusOr<std::vector<AnswerRecord>> RunBatch(const TokenPrompt& prompt, const SavedPrompt& saved,
                                                     std::span<const SpecChoice> specs);
  absl::Status Step(std::span<const uint32_t> answer, std::vector<uint32_t>* right);
  absl::Status AwaitReady();
  absl::Status FirstFailure() const;

  const Options options_;
  const KvLayout layout_;
  const DataPlaneWaits waits_;
  InferenceRankMetrics metrics_;
  std::unique_ptr<Executor> executor_;
  Transformer transformer_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<HostedCacheRank> cache_;
  DecodeStep decode_step_;
  PromptSender sender_;
  uint64_t next_sequence_id_ = 1;
  uint64_t next_plan_ = 1;
  std::vector<std::unique_ptr<Sequence>> batch_;
};

}  // namespace winnow
