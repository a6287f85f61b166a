#include "tools/bench/serving/virtual_rank.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "cache_rank/store/fast_tier.h"
#include "cache_rank/store/working_set_meter.h"
#include "common/base/check.h"
#include "inference_rank/scheduler/inject_controller.h"
#include "inference_rank/scheduler/scheduler.h"
#include "tools/bench/serving/block_reads.h"

namespace winnow::serving {
namespace {

using State = Sequence::State;

// One list, of rows as large as those of the model.
const KvLayout kOneList{1, 1, 1, 128, Dtype::kBf16};
constexpr uint32_t kChunkTokens = 2048;
constexpr uint32_t kLeastTokens = 8;
constexpr double kPrefillShare = 0.25;  // of the memory for KV, where prompts lie apart while they are prefilled
constexpr auto kAgeBound = std::chrono::seconds(30);
// Copies of FastTier are scaled down to this, so that it holds no memory to speak of.
constexpr size_t kCopyBytes = 64;
constexpr uint32_t kUnitsPerSequence = 1024;

Scheduler::Time At(double us) {
  return Scheduler::Time(std::chrono::nanoseconds(static_cast<int64_t>(us * 1e3)));
}

// A request under way, beside its Sequence.
struct Client {
  const VirtualRequest* request = nullptr;
  double first_token_us = -1;
  double last_token_us = 0;
  double started_us = -1;  // its first chunk
  double transfer_us = 0;  // of its history
  double restored_us = 0;  // its history is at hand
  uint32_t answered = 0;
  uint32_t pages = 0;
  double prefill_bytes = 0;
  size_t held_bytes = 0;  // of the fast tier, beside copies
  std::byte* held = nullptr;
  size_t index_bytes = 0;
  std::byte* index = nullptr;
  uint32_t first_unit = 0;
  std::optional<BlockReads> reads;
  WorkingSetMeter meter;
};

class VirtualRank {
 public:
  VirtualRank(const ServingSystem& system, const H200Costs& costs, std::span<const VirtualRequest> requests,
              double end_us)
      : system_(system),
        costs_(costs),
        requests_(requests),
        end_us_(end_us),
        unit_bytes_(BlockReads::kUnitRows * costs.kv_token_bytes),
        free_pages_(static_cast<uint32_t>(costs.kv_memory_bytes / costs.kv_token_bytes / kSlotPageTokens *
                                          (system.sparse ? 1 - costs.index_token_bytes / costs.kv_token_bytes : 1))),
        free_prefill_bytes_(kPrefillShare * costs.kv_memory_bytes),
        tier_({.memory_bytes = Scaled(costs.kv_memory_bytes)}, kCopyBytes),
        link_(std::make_shared<CacheLink>(
            "virtual", grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()), [] {})),
        scheduler_({.max_running = system.max_running,
                    .prefill_chunk_tokens = kChunkTokens,
                    .age_bound = system.offloads ? std::chrono::microseconds(kAgeBound) : std::chrono::microseconds(0),
                    .working_set_control = system.controls},
                   kOneList),
        clients_(requests.size()) {
    if (system.tpot_target_us > 0) inject_controller_.emplace(system.tpot_target_us);
    for (size_t slab = 0; slab < system.max_running; ++slab) {
      free_units_.push_back(static_cast<uint32_t>((system.max_running - 1 - slab) * kUnitsPerSequence));
    }
  }

  const std::vector<TokenGap>& gaps() const { return gaps_; }

  ServingFigures Run() {
    while (now_us_ < end_us_) {
      Arrive();
      Admit();
      if (!Iterate()) {
        // Nothing to compute: until something comes or a history is restored.
        double next_us = next_request_ < requests_.size() ? requests_[next_request_].arrival_us : end_us_;
        scheduler_.ForEach([&](Sequence& sequence) {
          if (sequence.state == State::kOpening) next_us = std::min(next_us, Of(sequence).restored_us);
        });
        now_us_ = std::max(now_us_ + 1, std::min(next_us, end_us_));
      }
    }
    return Figures();
  }

 private:
  size_t Scaled(double bytes) const { return static_cast<size_t>(bytes / unit_bytes_ * kCopyBytes); }
  Client& Of(const Sequence& sequence) { return clients_[sequence.request_id]; }

  void Arrive() {
    for (; next_request_ < requests_.size() && requests_[next_request_].arrival_us <= now_us_; ++next_request_) {
      const VirtualRequest& request = requests_[next_request_];
      auto sequence = std::make_unique<Sequence>();
      sequence->request_id = next_request_;
      sequence->prompt.assign(request.prompt_tokens(), 0);
      sequence->max_positions = request.prompt_tokens() + request.answer_tokens;
      sequence->spec = {.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
      sequence->places.push_back({.cache_rank = {}, .shard = WholeModel(kOneList)});
      sequence->places.back().cache_rank.set_address("virtual");
      clients_[next_request_].request = &request;
      scheduler_.Enqueue(std::move(sequence), At(request.arrival_us));
    }
  }

  double PrefillBytesPerToken() const {
    return system_.segments ? costs_.kv_token_bytes / costs_.layers + costs_.activation_token_bytes
                            : costs_.kv_token_bytes;
  }

  // In the scheduler's units: rows of one list.
  Scheduler::Free Free() const {
    if (!system_.offloads) return {.slot_pages = free_pages_, .prefill_bytes = SIZE_MAX};
    const double tokens = free_prefill_bytes_ / PrefillBytesPerToken();
    return {.slot_pages = UINT32_MAX, .prefill_bytes = static_cast<size_t>(tokens) * kOneList.token_bytes()};
  }

  // Room for the index and the prefill of the longest prompt.
  bool TierHasRoom() const {
    return tier_.free_index_bytes() > Scaled(124'000 * (costs_.index_token_bytes + PrefillBytesPerToken()));
  }

  std::byte* Hold(size_t bytes) {
    WINNOW_CHECK(tier_.Reserve(bytes).ok());
    return tier_.AllocateIndex(bytes);
  }

  void Admit() {
    while (!system_.offloads || TierHasRoom()) {
      Sequence* sequence = scheduler_.Admit(Free(), At(now_us_));
      if (sequence == nullptr) break;
      Client& client = Of(*sequence);
      const VirtualRequest& request = *client.request;
      sequence->shards = {{.link = link_, .shard = WholeModel(kOneList)}};
      sequence->next_position = sequence->watermark = sequence->cached_tokens = request.history_tokens;
      scheduler_.CreditCachedTokens(*sequence, request.history_tokens);
      if (!system_.offloads) {
        client.pages = WorkingSet::PagesNeeded(kOneList, sequence->spec, sequence->max_positions);
        free_pages_ -= client.pages;
      } else {
        client.first_unit = free_units_.back();
        free_units_.pop_back();
        client.prefill_bytes = request.prompt_tokens() * PrefillBytesPerToken();
        free_prefill_bytes_ -= client.prefill_bytes;
        client.held_bytes = std::max<size_t>(64, Scaled(client.prefill_bytes) / 64 * 64);
        client.held = Hold(client.held_bytes);
        client.index_bytes = std::max<size_t>(64, Scaled(sequence->max_positions * costs_.index_token_bytes) / 64 * 64);
        client.index = Hold(client.index_bytes);
        client.reads.emplace(system_.budget_rows, sequence->request_id);
      }
      if (request.history_tokens == 0) {
        sequence->state = State::kPrefilling;
        continue;
      }
      const double rate = !system_.offloads ? costs_.bulk_bytes_per_us
                          : system_.gathers ? costs_.gather_bytes_per_us
                                            : costs_.copies_bytes_per_us;
      client.transfer_us = request.history_tokens * costs_.kv_token_bytes / rate;
      link_free_us_ = std::max(link_free_us_, now_us_) + client.transfer_us;
      client.restored_us = link_free_us_;
      sequence->state = State::kOpening;
    }
    scheduler_.ForEach([&](Sequence& sequence) {
      if (sequence.state == State::kOpening && Of(sequence).restored_us <= now_us_) sequence.state = State::kPrefilling;
    });
  }

  bool Iterate() {
    const uint32_t inject = MostInjected();
    const Scheduler::Iteration plan = scheduler_.Plan(inject, At(now_us_));
    const bool paced = inject_controller_.has_value() && !plan.rows.empty() && inject > 0;
    rows_.assign(plan.rows.begin(), plan.rows.end());
    const double start_us = now_us_;
    double prefill_us = 0;
    done_.clear();
    for (uint32_t left = plan.prefill_tokens; left > 0;) {
      Sequence* sequence = scheduler_.NextPrefill(At(now_us_));
      if (sequence == nullptr) break;
      sequence->last_chunk = At(now_us_);
      if (Of(*sequence).started_us < 0) Of(*sequence).started_us = start_us + prefill_us;
      uint32_t tokens = std::min(left, sequence->prompt_tokens() - sequence->next_position);
      if (paced) tokens = std::min(tokens, PacedTokens(*sequence, start_us + prefill_us));
      if (tokens == 0) break;
      left -= tokens;
      const double chunk_us = ChunkUs(*sequence, tokens);
      prefill_us += chunk_us;
      if (inject_controller_.has_value()) inject_controller_->ObservePrefill(Work(tokens, *sequence), chunk_us);
      sequence->next_position += tokens;
      sequence->watermark = sequence->next_position;
      if (sequence->next_position == sequence->prompt_tokens()) EndPrefill(*sequence);
    }
    const double step_us = rows_.empty() ? 0 : StepUs();
    now_us_ = start_us + prefill_us + step_us;
    // The first token is drawn at the end of the prompt, which comes before the step.
    for (Sequence* sequence : prefilled_) TakeToken(*sequence, start_us + prefill_us);
    prefilled_.clear();
    for (Sequence* sequence : rows_) {
      sequence->watermark = ++sequence->next_position;
      TakeToken(*sequence, now_us_);
    }
    if (rows_.empty()) {
      last_step_us_.reset();
    } else {
      if (inject_controller_.has_value()) {
        inject_controller_->ObserveDecode(step_us, scheduler_.NextPrefill(At(now_us_)) != nullptr);
      }
      last_step_us_ = now_us_;
      ++figures_.steps;
      figures_.rows_per_step += static_cast<double>(rows_.size());
      const double parked = static_cast<double>(scheduler_.num_parked());
      figures_.parked_share += parked / (parked + static_cast<double>(rows_.size()));
    }
    for (const Sequence* sequence : done_) End(sequence);
    return prefill_us + step_us > 0;
  }

  double Work(double tokens, const Sequence& sequence) const {
    return costs_.prefill_work.ThroughLayer(tokens, sequence.next_position);
  }

  uint32_t PacedTokens(const Sequence& sequence, double at_us) const {
    const double room_us = inject_controller_->RoomUs(at_us - last_step_us_.value_or(at_us));
    const double work = inject_controller_->WorkWithin(room_us, Work(kLeastTokens, sequence));
    const double tokens = costs_.prefill_work.WholeTokensWithin(work, sequence.next_position);
    return tokens < kLeastTokens ? 0 : static_cast<uint32_t>(std::min<double>(tokens, kChunkTokens));
  }

  uint32_t MostInjected() const {
    if (!inject_controller_.has_value()) return system_.inject_tokens;
    const Sequence* next = scheduler_.NextPrefill(At(now_us_));
    return next == nullptr ? kChunkTokens : PacedTokens(*next, now_us_);
  }

  double ChunkUs(const Sequence& sequence, uint32_t tokens) {
    const double compute_us = costs_.PrefillUs(tokens, sequence.next_position);
    if (!system_.offloads) return compute_us;
    const double saved_bytes = tokens * costs_.kv_token_bytes;
    if (!system_.gathers) return compute_us + saved_bytes / costs_.scatter_bytes_per_us;
    return std::max(compute_us, saved_bytes / costs_.bulk_bytes_per_us);
  }

  void EndPrefill(Sequence& sequence) {
    Client& client = Of(sequence);
    sequence.state = State::kDecoding;
    if (system_.offloads) {
      free_prefill_bytes_ += client.prefill_bytes;
      tier_.FreeIndex(client.held, client.held_bytes, /*keep_reserved=*/false);
      client.held = nullptr;
    }
    prefilled_.push_back(&sequence);
  }

  double StepUs() {
    const double rows = static_cast<double>(rows_.size());
    double attended_bytes = 0, context_tokens = 0;
    uint64_t missed = 0;
    for (Sequence* sequence : rows_) {
      const double context = sequence->next_position;
      context_tokens += context;
      attended_bytes +=
          (system_.sparse ? std::min<double>(context, system_.budget_rows) : context) * costs_.kv_token_bytes;
      if (system_.offloads) missed += Read(*sequence);
    }
    const double attention_us =
        attended_bytes / (system_.sparse ? costs_.sparse_attention_bytes_per_us : costs_.dense_attention_bytes_per_us);
    const double compute_us = costs_.step_overhead_us + costs_.MatmulUs(rows) + attention_us;
    if (!system_.sparse) return compute_us;
    const double scoring_us = context_tokens * costs_.selection_us_per_token;
    const double loaded_bytes = static_cast<double>(missed) * unit_bytes_;
    double load_us = loaded_bytes / (system_.gathers ? costs_.gather_bytes_per_us : costs_.copies_bytes_per_us);
    if (link_free_us_ > now_us_) {
      // Beside a history, which gets the other half of the link.
      link_free_us_ += load_us;
      load_us *= 2;
    }
    figures_.loaded_rows_per_step += static_cast<double>(missed) * BlockReads::kUnitRows;
    if (system_.offloads) {
      const double room_units = static_cast<double>(tier_.room_for_copies()) / kCopyBytes;
      link_->set_fast_rows_bytes(static_cast<uint64_t>(room_units * UnitRowsBytes()));
    }
    if (!system_.overlaps) return compute_us + costs_.selection_chain_us + scoring_us + load_us;
    // Scoring takes bandwidth from compute, but waits for nothing; predicting a query reads its projection once more.
    // Rows that come from host memory were measured to come on top of that.
    return std::max(costs_.beside_selection * compute_us, costs_.selection_chain_us) + scoring_us + load_us;
  }

  static double UnitRowsBytes() { return BlockReads::kUnitRows * static_cast<double>(kOneList.row_bytes()); }

  // Units that the fast tier did not have.
  uint32_t Read(Sequence& sequence) {
    Client& client = Of(sequence);
    const std::span<const uint32_t> units = client.reads->Next(sequence.next_position);
    uint32_t missed = 0;
    read_rows_.clear();
    for (const uint32_t unit : units) {
      const uint32_t number = client.first_unit + unit;
      if (tier_.Touch(number) == nullptr) {
        tier_.Admit(number);
        ++missed;
      }
      read_rows_.push_back(unit * kBlockTokens);
    }
    client.meter.Record(read_rows_);
    sequence.shards.front().working_set_bytes = static_cast<uint64_t>(client.meter.blocks() * UnitRowsBytes());
    return missed;
  }

  void TakeToken(Sequence& sequence, double at_us) {
    Client& client = Of(sequence);
    if (client.first_token_us < 0) {
      client.first_token_us = at_us;
    } else {
      gaps_.push_back({.end_us = at_us, .length_us = at_us - client.last_token_us});
    }
    client.last_token_us = at_us;
    ++tokens_;
    if (++client.answered >= client.request->answer_tokens) done_.push_back(&sequence);
  }

  void End(const Sequence* sequence) {
    Client& client = Of(*sequence);
    ++figures_.finished;
    free_pages_ += client.pages;
    if (system_.offloads) {
      for (uint32_t unit = 0; unit < kUnitsPerSequence; ++unit) tier_.Drop(client.first_unit + unit);
      free_units_.push_back(client.first_unit);
      tier_.FreeIndex(client.index, client.index_bytes, /*keep_reserved=*/false);
    }
    client.reads.reset();
    scheduler_.Remove(sequence);
  }

  ServingFigures Figures() {
    figures_.requests = requests_.size();
    for (size_t i = 0; i < requests_.size(); ++i) {
      const Client& client = clients_[i];
      const double arrival_us = requests_[i].arrival_us;
      const double started_us = client.started_us < 0 ? end_us_ : client.started_us;
      figures_.mean_queueing_s += std::max(0.0, started_us - arrival_us - client.transfer_us) / 1e6;
      figures_.mean_ttft_s += ((client.first_token_us < 0 ? end_us_ : client.first_token_us) - arrival_us) / 1e6;
    }
    const double requests = std::max<double>(1, static_cast<double>(requests_.size()));
    figures_.mean_queueing_s /= requests;
    figures_.mean_ttft_s /= requests;
    const double steps = std::max<double>(1, static_cast<double>(figures_.steps));
    figures_.rows_per_step /= steps;
    figures_.loaded_rows_per_step /= steps;
    figures_.parked_share /= steps;
    figures_.tokens_per_s = static_cast<double>(tokens_) / (end_us_ / 1e6);
    if (gaps_.empty()) return figures_;
    std::vector<float> lengths_us;
    for (const TokenGap& gap : gaps_) lengths_us.push_back(static_cast<float>(gap.length_us));
    const double gaps = static_cast<double>(lengths_us.size());
    figures_.mean_tbt_ms = std::accumulate(lengths_us.begin(), lengths_us.end(), 0.0) / gaps / 1e3;
    const auto p99 = lengths_us.begin() + static_cast<ptrdiff_t>(0.99 * (gaps - 1));
    std::nth_element(lengths_us.begin(), p99, lengths_us.end());
    figures_.p99_tbt_ms = *p99 / 1e3;
    return figures_;
  }

  const ServingSystem system_;
  const H200Costs costs_;
  const std::span<const VirtualRequest> requests_;
  const double end_us_;
  const double unit_bytes_;

  double now_us_ = 0;
  double link_free_us_ = 0;  // histories are restored one after the other
  size_t next_request_ = 0;
  uint32_t free_pages_;
  double free_prefill_bytes_;
  FastTier tier_;
  std::vector<uint32_t> free_units_;
  std::shared_ptr<CacheLink> link_;
  Scheduler scheduler_;
  std::optional<InjectController> inject_controller_;
  std::optional<double> last_step_us_;  // the end of the last one, if decodes went on since
  std::vector<Client> clients_;         // by request id

  std::vector<Sequence*> rows_, prefilled_;
  std::vector<const Sequence*> done_;
  std::vector<uint32_t> read_rows_;
  std::vector<TokenGap> gaps_;
  uint64_t tokens_ = 0;
  ServingFigures figures_;
};

}  // namespace

ServingFigures Serve(const ServingSystem& system, const H200Costs& costs, std::span<const VirtualRequest> requests,
                     double end_us, std::vector<TokenGap>* gaps) {
  VirtualRank rank(system, costs, requests, end_us);
  const ServingFigures figures = rank.Run();
  if (gaps != nullptr) *gaps = rank.gaps();
  return figures;
}

}  // namespace winnow::serving
