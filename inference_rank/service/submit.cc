#include "inference_rank/service/submit.h"

#include "common/selection/selection_proto.h"
#include "common/selection/validate.h"
#include "common/selection/window_layers.h"

namespace winnow {
namespace {

absl::Status CheckTrace(const Sequence& sequence, uint32_t parts, const SubmitLimits& limits) {
  if (parts > kMaxTraceParts) {
    return absl::InvalidArgumentError(absl::StrCat("trace_parts is ", parts, ", at most ", kMaxTraceParts));
  }
  if (sequence.slot_order == SlotOrder::kByPosition) {
    return absl::UnimplementedError(
        "winnow.trace: the steps of this request run ahead on a GPU that has all of its rows, and do not tell which "
        "they attend to");
  }
  if (!limits.windows.empty()) {
    return absl::UnimplementedError("winnow.trace: the model has sliding windows, which traces do not show");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sequence>> MakeSequence(const v1::DispatchRequest::Submit& submit,
                                                       const SubmitLimits& limits) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request_id = submit.request_id();
  sequence->sequence_id = submit.sequence_id();
  if (submit.cache_ranks().empty()) return absl::InvalidArgumentError("cache_ranks is empty");
  WINNOW_ASSIGN_OR_RETURN(const std::vector<KvShard> shards, CutIntoShards(limits.layout, submit.cache_ranks_size()));
  for (size_t i = 0; i < shards.size(); ++i) {
    sequence->places.push_back({submit.cache_ranks(static_cast<int>(i)), shards[i]});
    for (size_t other = 0; other < i; ++other) {
      if (sequence->places[other].cache_rank.rank() != sequence->places[i].cache_rank.rank()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("two shards on cache rank ", sequence->places[i].cache_rank.rank()));
    }
  }
  sequence->prompt.assign(submit.prompt_token_ids().begin(), submit.prompt_token_ids().end());
  sequence->generated.assign(submit.generated_token_ids().begin(), submit.generated_token_ids().end());
  sequence->attach = submit.attach();
  sequence->repeats = submit.repeats();
  sequence->hand_over = submit.hand_over();
  sequence->skips_prefix_cache = submit.skip_prefix_cache() || submit.has_prompt_top_logprobs();
  sequence->tenant = submit.tenant();
  sequence->priority = submit.priority();
  if (submit.fork_sequence_id() != 0 && !submit.attach()) {
    sequence->fork_of = submit.fork_sequence_id();
    sequence->fork_at_current_token = submit.fork_at_current_token();
    sequence->state = Sequence::State::kAwaitingFork;
  }
  sequence->followers_due = submit.followers();
  if (submit.has_tenant_weight()) sequence->tenant_weight = submit.tenant_weight();
  sequence->sampling_params = submit.sampling();
  sequence->stopping = submit.stopping();
  if (submit.sampling().has_constraint()) {
    if (limits.grammars == nullptr) return absl::UnimplementedError("sampling.constraint: not served here");
    absl::StatusOr<std::shared_ptr<TokenGrammar>> grammar = limits.grammars->Get(submit.sampling().constraint());
    if (!grammar.ok()) return Annotate(grammar.status(), "sampling.constraint");
    sequence->grammar = *std::move(grammar);
  }
  if (submit.has_top_logprobs()) sequence->top_logprobs = submit.top_logprobs();
  sequence->deadline =
      std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(submit.deadline_unix_nanos())));
  WINNOW_ASSIGN_OR_RETURN(sequence->spec, FromProto(submit.selection()));

  if (sequence->prompt.empty()) return absl::InvalidArgumentError("prompt_token_ids is empty");
  for (const auto* ids : {&sequence->prompt, &sequence->generated}) {
    for (uint32_t id : *ids) {
      if (id >= limits.vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat("token id ", id, " is not in the vocabulary of ", limits.vocab_size));
      }
    }
  }
  if (!(sequence->tenant_weight > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("tenant_weight is ", sequence->tenant_weight));
  }
  if (submit.stopping().max_tokens() == 0) return absl::InvalidArgumentError("stopping.max_tokens is 0");
  const uint64_t positions = uint64_t{submit.stopping().max_tokens()} + sequence->prompt.size();
  if (positions > limits.max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(sequence->prompt.size(), " prompt tokens and max_tokens ",
                                                   submit.stopping().max_tokens(), " exceed the context of ",
                                                   limits.max_context_tokens));
  }
  // As many as max_tokens are those of an answer that was lost between its last token and the word that it is over.
  if (sequence->generated.size() > submit.stopping().max_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("generated_token_ids are ", sequence->generated.size(),
                                                   ", beyond max_tokens ", submit.stopping().max_tokens()));
  }
  sequence->max_positions = static_cast<uint32_t>(positions);
  const SelectionSpec& spec = sequence->spec;
  if (spec.predictor != Predictor::kDense && spec.budget_tokens > limits.max_budget_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("selection.budget_tokens ", spec.budget_tokens,
                                                   " exceeds the server's ", limits.max_budget_tokens));
  }
  if (spec.predictor == Predictor::kDepth && spec.lookahead != limits.lookahead) {
    return absl::InvalidArgumentError(
        absl::StrCat("selection.lookahead ", spec.lookahead, " is not the server's ", limits.lookahead));
  }
  WINNOW_RETURN_IF_ERROR(CheckFitsModel(spec, limits.layout));
  WINNOW_RETURN_IF_ERROR(CheckKeepsWindows(spec, limits.windows, limits.layout.num_kv_heads));
  if (limits.selects_in_place != nullptr && limits.selects_in_place(spec)) {
    sequence->slot_order = SlotOrder::kByPosition;
  }
  if (submit.trace_parts() > 0) {
    WINNOW_RETURN_IF_ERROR(CheckTrace(*sequence, submit.trace_parts(), limits));
    sequence->trace.emplace(spec, limits.layout, sequence->prompt_tokens(), sequence->max_positions,
                            submit.trace_parts());
  }
  if (submit.prompt_progress()) sequence->prompt_report.emplace();
  if (submit.has_prompt_top_logprobs()) {
    if (submit.attach()) return absl::InvalidArgumentError("prompt_top_logprobs with attach");
    sequence->prompt_scores.emplace(submit.prompt_top_logprobs());
  }
  const uint32_t pages =
      WorkingSet::PagesNeeded(limits.layout, spec, sequence->max_positions, limits.slot_parts, sequence->slot_order);
  if (pages > limits.slot_pages && sequence->slot_order == SlotOrder::kByPosition) {
    return absl::InvalidArgumentError(absl::StrCat("the KV of ", sequence->max_positions, " positions needs ", pages,
                                                   " slot pages, and the rank has ", limits.slot_pages));
  }
  if (pages > limits.slot_pages) {
    std::string growth;
    if (GrowsBudgets(spec)) {
      growth = absl::StrCat(" (the guard may let budgets of ", spec.budget_tokens, " grow ", spec.budget_growth, " x)");
    }
    uint64_t pool_slots = 0;
    for (size_t list = 0; list < limits.layout.num_lists(); ++list) {
      pool_slots += PoolSlots(spec, list, sequence->max_positions, limits.layout.group_size());
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the working set of ", sequence->max_positions, " positions needs ", pages,
                     " slot pages: ", pool_slots, " pool slots", growth, " over all lists, ", spec.sink_tokens,
                     " sinks and a ring of ", wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens),
                     " in each of ", limits.layout.num_layers, " x ", limits.layout.num_kv_heads,
                     limits.slot_parts > 1 ? "; each of the rank's GPUs has " : "; the rank has ", limits.slot_pages));
  }
  return sequence;
}

}  // namespace winnow
