#include "tools/bench/quality/forced_decoder.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "common/rpc/identity.h"
#include "inference_rank/service/fingerprint.h"

namespace winnow {
namespace {

// Sleeps early: workers share cores, and their waits are long.
constexpr DataPlaneWaits kWaits{.timeout = std::chrono::seconds(60), .spin = std::chrono::microseconds(100)};

std::unique_ptr<Transport> NewTransport() {
  TransportOptions options;
  options.incarnation = RandomIncarnation();
  return NewInprocTransport(options);
}

uint32_t Argmax(std::span<const float> logits) {
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

AnswerRecord Record(const SpecChoice& choice, const Sequence& sequence, uint32_t right) {
  AnswerRecord record;
  record.mode = "forced";
  record.prompt_tokens = sequence.prompt_tokens();
  record.answer_tokens = static_cast<uint32_t>(sequence.generated.size());
  record.spec = choice.name;
  record.budget = choice.budget();
  record.right_tokens = right;
  record.exact = right == record.answer_tokens;
  record.decode_steps = sequence.decode_steps;
  record.mass_count = sequence.mass.count();
  record.mass_mean = sequence.mass.mean();
  for (int bin = 0; bin <= MassSummary::kBins; ++bin) {
    if (sequence.mass.in_bin(bin) > 0) record.mass_bins[bin] = sequence.mass.in_bin(bin);
  }
  record.mass_before_mean = sequence.mass_before.mean();
  record.corrections = sequence.missed_top_k_corrections + sequence.widened_corrections;
  record.correction_rows = sequence.correction_rows;
  record.attended_rows = sequence.attended_rows;
  record.selection_lookups = sequence.selection_lookups;
  record.selection_hits = sequence.selection_hits;
  record.streamed_rows = sequence.streamed_rows;
  record.streamed_bytes = sequence.streamed_bytes;
  return record;
}

}  // namespace

ForcedDecoder::ForcedDecoder(const QualityModel& model, const Options& options)
    : options_(options),
      layout_(model.layout()),
      waits_(kWaits),
      metrics_(layout_.num_layers),
      executor_(model.kernels().new_executor(options.threads)),
      transformer_(model.config(), model.weights(), model.kernels(), *executor_, layout_.dtype,
                   static_cast<int>(options.chunk_tokens), options.max_positions + kBlockTokens),
      transport_(NewTransport()),
      decode_step_(*transport_, layout_, metrics_, waits_),
      sender_(*transport_, layout_, metrics_, waits_) {}

absl::StatusOr<std::unique_ptr<ForcedDecoder>> ForcedDecoder::Create(const QualityModel& model,
                                                                     const Options& options) {
  std::unique_ptr<ForcedDecoder> decoder(new ForcedDecoder(model, options));
  decoder->transport_->SetHandler(
      [self = decoder.get()](Channel&, ReceivedFrame frame) { self->OnFrame(std::move(frame)); });
  HostedCacheRank::Options cache;
  const size_t blocks = (options.max_positions + kBlockTokens - 1) / kBlockTokens + 1;
  // Pages of 16 rows at the least: bounds and cuboid-means, a block for kBlockTokens of them.
  const size_t page_blocks = 2 * (blocks / 16 + 1);
  cache.memory_bytes = options.rows * (blocks + page_blocks) * BlockBytes(decoder->layout_) *
                       decoder->layout_.num_layers * decoder->layout_.num_kv_heads;
  cache.threads = options.threads;
  cache.waits = kWaits;
  cache.projection = model.projection();
  const v1::Fingerprint fingerprint =
      InferenceFingerprint(model.digest(), decoder->layout_, decoder->transformer_, std::string(model.kernels().name));
  WINNOW_ASSIGN_OR_RETURN(decoder->cache_,
                          HostedCacheRank::Create(cache, model.kernels(), fingerprint, *decoder->transport_));
  return decoder;
}

void ForcedDecoder::OnFrame(ReceivedFrame frame) {
  const wire::FrameHeader header = frame.header();
  absl::Status failure;
  if (header.type == wire::FrameType::kDelta) {
    failure = decode_step_.OnDelta(*cache_->link(), std::move(frame));
  } else if (header.type == wire::FrameType::kPartial) {
    failure = decode_step_.OnPartial(*cache_->link(), frame);
  } else if (header.type == wire::FrameType::kWatermark) {
    const auto* entries = reinterpret_cast<const wire::WatermarkEntry*>(frame.payload().data());
    for (uint32_t i = 0; i < header.row_count; ++i) {
      for (const auto& sequence : batch_) {
        if (sequence->sequence_id == entries[i].sequence_id) {
          sequence->watermark = std::max(sequence->watermark, entries[i].watermark);
        }
      }
    }
  } else {
    failure = absl::InternalError(absl::StrCat("the cache rank refuses: frame type ", static_cast<int>(header.type)));
  }
  if (failure.ok()) return;
  for (const auto& sequence : batch_) sequence->Fail(failure, /*can_retry=*/false);
}

absl::StatusOr<std::vector<AnswerRecord>> ForcedDecoder::Run(const TokenPrompt& prompt,
                                                             std::span<const SpecChoice> specs) {
  WINNOW_ASSIGN_OR_RETURN(const SavedPrompt saved,
                          SavedPrompt::Prefill(transformer_, layout_, prompt.prompt, options_.chunk_tokens));
  std::vector<AnswerRecord> records(specs.size());
  for (const std::vector<size_t>& batch : SpecBatches(specs, options_.rows)) {
    std::vector<SpecChoice> together;
    for (const size_t i : batch) together.push_back(specs[i]);
    WINNOW_ASSIGN_OR_RETURN(std::vector<AnswerRecord> answers, RunBatch(prompt, saved, together));
    for (size_t i = 0; i < batch.size(); ++i) records[batch[i]] = std::move(answers[i]);
  }
  return records;
}

absl::Status ForcedDecoder::Start(Sequence& sequence, const SavedPrompt& saved, SlotPool& slots) {
  WINNOW_ASSIGN_OR_RETURN(WorkingSet set, WorkingSet::Create(slots, layout_, sequence.spec, sequence.max_positions,
                                                             sequence.prompt_tokens()));
  sequence.working_set.emplace(std::move(set));
  WINNOW_RETURN_IF_ERROR(cache_->Open(sequence, layout_));
  return saved.HandTo(sequence, layout_, sender_);
}

absl::StatusOr<std::vector<AnswerRecord>> ForcedDecoder::RunBatch(const TokenPrompt& prompt, const SavedPrompt& saved,
                                                                  std::span<const SpecChoice> specs) {
  // The answer's last token is never an input.
  const uint32_t positions = static_cast<uint32_t>(prompt.prompt.size() + prompt.answer.size() - 1);
  uint32_t pages = 0;
  for (const SpecChoice& choice : specs) pages += WorkingSet::PagesNeeded(layout_, choice.spec, positions);
  WINNOW_ASSIGN_OR_RETURN(SlotPool slots, SlotPool::Create(layout_.row_bytes(), pages));
  transformer_.set_slot_pool(slots.rows());
  const absl::Cleanup end = [&] {
    for (const auto& sequence : batch_) {
      if (sequence->is_attached()) (void)cache_->Release(*sequence);
    }
    batch_.clear();
  };
  for (const SpecChoice& choice : specs) {
    auto sequence = std::make_unique<Sequence>();
    sequence->sequence_id = next_sequence_id_++;
    sequence->prompt = prompt.prompt;
    sequence->generated = prompt.answer;
    sequence->spec = choice.spec;
    sequence->max_positions = positions;
    batch_.push_back(std::move(sequence));
    WINNOW_RETURN_IF_ERROR(Start(*batch_.back(), saved, slots));
  }
  std::vector<uint32_t> right(specs.size(), Argmax(saved.logits()) == prompt.answer.front() ? 1 : 0);
  for (size_t next = 1; next < prompt.answer.size(); ++next) {
    WINNOW_RETURN_IF_ERROR(Step(prompt.answer, &right));
  }
  std::vector<AnswerRecord> records;
  for (size_t i = 0; i < specs.size(); ++i) {
    records.push_back(Record(specs[i], *batch_[i], right[i]));
    WINNOW_ASSIGN_OR_RETURN(records.back().scored_key_bytes, cache_->ScoredKeyBytes(batch_[i]->sequence_id));
  }
  return records;
}

// One position of every sequence. `right` counts the answer tokens that each has got right.
absl::Status ForcedDecoder::Step(std::span<const uint32_t> answer, std::vector<uint32_t>* right) {
  WINNOW_RETURN_IF_ERROR(AwaitReady());
  std::vector<Sequence*> rows;
  for (const auto& sequence : batch_) rows.push_back(sequence.get());
  const uint32_t next = rows[0]->next_position - rows[0]->prompt_tokens() + 1;  // of the answer
  decode_step_.Begin(next_plan_++, rows);
  const std::span<float> logits =
      transformer_.DecodeByLayer(decode_step_.token_ids(), decode_step_.positions(), decode_step_);
  decode_step_.Finish();
  const size_t vocab = logits.size() / rows.size();
  for (size_t row = 0; row < rows.size(); ++row) {
    (*right)[row] += Argmax(logits.subspan(row * vocab, vocab)) == answer[next] ? 1 : 0;
  }
  return FirstFailure();
}

absl::Status ForcedDecoder::AwaitReady() {
  const auto ready = [](const auto& sequence) { return sequence->ready_to_decode(); };
  const auto give_up = std::chrono::steady_clock::now() + waits_.timeout;
  while (!std::all_of(batch_.begin(), batch_.end(), ready)) {
    transport_->Wait(std::chrono::milliseconds(5), waits_.spin);
    WINNOW_RETURN_IF_ERROR(FirstFailure());
    if (!cache_->link()->alive()) return absl::UnavailableError("the cache rank is gone");
    if (std::chrono::steady_clock::now() > give_up) return absl::DeadlineExceededError("no watermark comes");
  }
  return absl::OkStatus();
}

absl::Status ForcedDecoder::FirstFailure() const {
  for (const auto& sequence : batch_) WINNOW_RETURN_IF_ERROR(sequence->failure);
  return absl::OkStatus();
}

}  // namespace winnow
