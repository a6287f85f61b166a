#include "inference_rank/service/inference_rank.h"

#include "common/tokenizer/checkpoint/load_tokenizer.h"
#include "inference_rank/backend/cpu_backend.h"
#include "inference_rank/backend/device_backend.h"
#include "inference_rank/service/fingerprint.h"
#include "inference_rank/service/rank_model.h"
#include "kernels/parallel_for.h"

namespace winnow {
namespace {

std::function<bool(const SelectionSpec&)> InPlaceOf(const StepClient* client) {
  if (client == nullptr) return nullptr;
  return [client](const SelectionSpec& spec) { return client->Serves(spec).ok(); };
}

// The bytes of the model's tokens; what is wrong with them matters to requests that need them alone.
absl::StatusOr<std::shared_ptr<const TokenTrie>> LoadTokenTrie(const std::string& model_dir,
                                                               const ModelConfig& config) {
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(model_dir));
  if (tokenizer == nullptr) {
    return absl::FailedPreconditionError("this model has no tokenizer, so that outputs cannot be constrained");
  }
  return std::make_shared<TokenTrie>(
      TokenTrie::Of(*tokenizer, static_cast<uint32_t>(config.vocab_size), config.eos_token_ids));
}

}  // namespace

absl::StatusOr<std::unique_ptr<InferenceRank>> InferenceRank::Create(const InferenceRankOptions& options,
                                                                     std::unique_ptr<Transport> transport,
                                                                     const v1::Identity& identity) {
  auto rank = std::unique_ptr<InferenceRank>(new InferenceRank());
  rank->options_ = options;
  WINNOW_ASSIGN_OR_RETURN(RankModel model, RankModel::Read(options));
  rank->model_ = std::make_unique<RankModel>(std::move(model));
  const ModelConfig& config = rank->config();
  rank->options_.max_context_tokens = rank->model_->max_context_tokens;
  rank->layout_ = rank->model_->layout;
  WINNOW_RETURN_IF_ERROR(rank->ChooseBackend());
  rank->model_->checkpoint.reset();  // weights keep it as far as they lie in it
  Backend& backend = *rank->backend_;
  rank->metrics_ = std::make_unique<InferenceRankMetrics>(rank->layout_.num_layers);
  rank->fingerprint_ = InferenceFingerprint(rank->model_->digest, rank->layout_, backend.forward(), backend.numerics());

  WINNOW_ASSIGN_OR_RETURN(SlotPool slots, backend.NewSlotPool());
  WINNOW_ASSIGN_OR_RETURN(const ParallelFor threads, rank->HostThreads());
  slots.UseThreads(threads);
  transport->UseThreads(threads);
  transport->DeferPayloadChecks(wire::FrameType::kDelta);  // to DecodeStep
  Engine::Options engine_options;
  const SchedulingOptions& scheduling = options.scheduling;
  if (scheduling.max_batch_tokens == 1) {
    return absl::InvalidArgumentError("--max-batch-tokens=1 leaves no token for prompts: at least 2");
  }
  engine_options.limits = {
      .max_running = options.max_running,
      .prefill = {.mode = backend.memory_plan().prefill_mode,
                  .memory_bytes = backend.memory_plan().prefill_bytes * backend.memory_plan().parts,
                  .hidden_size = static_cast<uint32_t>(config.hidden_size),
                  .parts = backend.memory_plan().parts},
      .slot_parts = backend.memory_plan().parts,
      .slot_tiers = backend.slot_tiers(),
      .prefill_chunk_tokens = rank->options_.prefill_chunk_tokens,
      .age_bound = scheduling.age_bound,
      .working_set_control = scheduling.working_set_control};
  if (scheduling.max_batch_tokens > 0) engine_options.limits.max_batch_tokens = scheduling.max_batch_tokens;
  engine_options.max_inject_tokens = scheduling.max_inject_tokens;
  engine_options.tpot_target = scheduling.tpot_target;
  engine_options.prefill_work = PrefillWork::Of(config);
  engine_options.state_floats = config.state_floats();
  engine_options.prefix_attention = options.prefix_attention;
  engine_options.kernel_set = backend.kernel_set();
  engine_options.num_threads = backend.num_threads();
  engine_options.waits = options.waits;
  engine_options.eos_token_ids = config.eos_token_ids;
  engine_options.on_prefilled_by_layer = options.on_prefilled_by_layer;
  engine_options.prefill_region = backend.prefill_region();
  engine_options.step_client = backend.step_client();
  engine_options.keep_prefixes = options.keep_prefixes;
  engine_options.on_device_failure = [rank = rank.get()](const absl::Status& why) {
    if (rank->options_.on_device_failure) rank->options_.on_device_failure(why, rank->backend_->Dump());
  };
  LinkTable::Options link_options{
      .identity = identity, .fingerprint = rank->fingerprint_, .credentials = options.credentials};
  if (options.offers_peer_links)
    link_options.new_peer_link = [&backend](const KvShard& shard) { return backend.NewPeerLink(shard); };
  link_options.on_peer_link = [rank = rank.get()](const CacheLink& link, const absl::Status& peer_link) {
    if (rank->options_.on_peer_link) rank->options_.on_peer_link(link.peer().rank(), peer_link);
  };
  rank->engine_ = std::make_unique<Engine>(std::move(engine_options), rank->layout_, backend.forward(),
                                           std::move(slots), std::move(transport), link_options, *rank->metrics_);
  rank->grammars_ = std::make_unique<GrammarCache>(LoadTokenTrie(options.model_dir, config), *rank->metrics_);
  rank->service_ =
      std::make_unique<RankServiceImpl>(*rank->engine_, *rank->metrics_,
                                        SubmitLimits{.vocab_size = static_cast<uint32_t>(config.vocab_size),
                                                     .max_context_tokens = rank->options_.max_context_tokens,
                                                     .max_budget_tokens = options.selection.budget_tokens,
                                                     .lookahead = options.selection.lookahead,
                                                     .layout = rank->layout_,
                                                     .windows = config.windows,
                                                     .slot_pages = backend.memory_plan().slot_pages,
                                                     .slot_parts = backend.memory_plan().parts,
                                                     .selects_in_place = InPlaceOf(backend.step_client()),
                                                     .grammars = rank->grammars_.get()},
                                        options.resume, options.spans);
  return rank;
}

InferenceRank::~InferenceRank() = default;

absl::StatusOr<ParallelFor> InferenceRank::HostThreads() {
  if (ParallelFor threads = backend_->threads(); threads != nullptr) return threads;
  WINNOW_ASSIGN_OR_RETURN(const KernelTable* const kernels, CpuKernels());
  host_executor_ = kernels->new_executor(std::max(1, options_.num_threads / 2));
  return ParallelForOn(*kernels, *host_executor_);
}

const ModelConfig& InferenceRank::config() const {
  return model_->config;
}

absl::Status InferenceRank::ChooseBackend() {
  BackendOptions options;
  if (options_.device.kind != DeviceChoice::Kind::kCpu) {
    options = GpuBackendOptions(options_, *model_);
    WINNOW_ASSIGN_OR_RETURN(const std::vector<int> gpus, GpusOfRank(options_.device, options_.tensor_parallel, 0, 1));
    absl::StatusOr<std::unique_ptr<Backend>> gpu = NewDeviceBackend(options, gpus);
    if (gpu.ok()) {
      backend_ = *std::move(gpu);
      device_description_ = backend_->description();
    } else if (options_.device.kind == DeviceChoice::Kind::kGpu || gpus.size() > 1 || !CpuWouldDo(gpu.status())) {
      return Annotate(gpu.status(), absl::StrCat("--device=", ToString(options_.device)));
    } else {
      device_description_ = absl::StrCat(" (--device=auto: ", gpu.status().message(), ")");
    }
  }
  if (backend_ == nullptr) {
    options = CpuBackendOptions(options_, *model_);
    absl::StatusOr<std::unique_ptr<Backend>> cpu = NewCpuBackend(options, options_.isa, options_.num_threads);
    if (!cpu.ok()) {
      // Why there is no GPU matters where one would have done.
      const bool gpu_might_do = absl::IsResourceExhausted(cpu.status()) || absl::IsUnimplemented(cpu.status());
      return gpu_might_do ? absl::Status(cpu.status().code(), absl::StrCat(cpu.status().message(), device_description_))
                          : cpu.status();
    }
    backend_ = *std::move(cpu);
    device_description_ = absl::StrCat(backend_->description(), device_description_);
  }
  options_.prefill_chunk_tokens = options.prefill_chunk_tokens;
  return absl::OkStatus();
}

std::vector<std::string> InferenceRank::warnings() const {
  std::vector<std::string> all = config().warnings;
  const std::vector<std::string> of_backend = backend_->warnings();
  all.insert(all.end(), of_backend.begin(), of_backend.end());
  all.insert(all.end(), model_->warnings.begin(), model_->warnings.end());
  return all;
}

v1::ModelLimits InferenceRank::limits() const {
  v1::ModelLimits limits;
  limits.set_max_context_tokens(options_.max_context_tokens);
  limits.set_vocab_size(config().vocab_size);
  limits.set_max_budget_tokens(options_.selection.budget_tokens);
  limits.set_max_running(options_.max_running);
  return limits;
}

v1::RankLoad InferenceRank::load() const {
  v1::RankLoad load;
  load.set_running_sequences(static_cast<uint32_t>(metrics_->running_sequences));
  load.set_waiting_sequences(static_cast<uint32_t>(metrics_->waiting_sequences));
  const uint64_t page_bytes = kSlotPageTokens * layout_.row_bytes() * backend_->memory_plan().parts;
  load.set_total_bytes(metrics_->slot_pages_total * page_bytes);
  load.set_free_bytes((metrics_->slot_pages_total - metrics_->slot_pages_used) * page_bytes);
  load.set_progress_count(metrics_->progress);
  load.set_queued_prompt_tokens(metrics_->queued_prompt_tokens);
  load.set_failing(std::string(engine_->usable().message()));
  return load;
}

}  // namespace winnow
