#include "cmd/cache_host.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "cache_rank/device/device_batch_selector.h"
#include "cache_rank/device/gpu_lanes.h"
#include "cache_rank/predictor/query_projection.h"
#include "cmd/machine.h"
#include "kernels/cuda/plugin.h"
#include "kernels/kernel_table.h"
#include "spdlog/spdlog.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/transport.grpc.pb.h"

namespace winnow {
namespace {

// Of what is free, when nothing is said: an inference rank on the same machine takes up to 60 % for itself.
constexpr double kAutomaticShare = 0.3;

std::string Gib(int64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / 1073741824.0);
}

// Memory for KV blocks, beside a fast tier and the weights that queries are projected with.
absl::StatusOr<int64_t> PlanMemory(const CacheOptions& options, int64_t weight_bytes) {
  const int64_t free_bytes = FreeMemoryBytes();
  const int64_t left =
      std::max<int64_t>(free_bytes - weight_bytes - options.fast_memory_bytes - options.device_host_memory_bytes, 0);
  const int64_t wanted = options.memory_bytes > 0 ? options.memory_bytes
                                                  : static_cast<int64_t>(kAutomaticShare * static_cast<double>(left));
  std::string others;
  if (options.fast_memory_bytes > 0) absl::StrAppend(&others, " + ", Gib(options.fast_memory_bytes), " of fast tier");
  if (options.device_host_memory_bytes > 0) {
    absl::StrAppend(&others, " + ", Gib(options.device_host_memory_bytes), " for rows that the GPU pushes");
  }
  if (weight_bytes > 0) absl::StrAppend(&others, " + ", Gib(weight_bytes), " for query projections");
  const std::string plan = absl::StrCat(Gib(wanted), " for KV blocks", others, " of ", Gib(free_bytes), " free");
  if (wanted > left) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory does not fit: ", plan, "; lower --memory (or --cache-memory of `winnow up`)"));
  }
  if (wanted == 0) return absl::ResourceExhaustedError("no memory is left for KV blocks; lower --fast-memory");
  spdlog::info("memory plan: {}", plan);
  return wanted;
}

// Of the GPU's memory, what the index of sequences without a lane takes beside lanes.
size_t IndexShare(const CacheOptions& options, size_t free_bytes) {
  return (options.device_memory_bytes > 0 ? static_cast<size_t>(options.device_memory_bytes) : free_bytes) / 4;
}

// Where rows can go from GPU to GPU: none where there is one GPU alone. FAILED_PRECONDITION or UNAVAILABLE say why not.
absl::StatusOr<std::shared_ptr<DeviceLanes>> NewLanes(const CacheOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const cuda::CudaTable* table, cuda::LoadPlugin());
  if (table->device_count() < 2) return absl::FailedPreconditionError("there is one GPU alone");
  GpuLanes::Options lanes;
  lanes.model = options.lane_model.empty() ? options.model : options.lane_model;
  lanes.memory_bytes = static_cast<size_t>(options.device_memory_bytes) / 4 * 3;
  lanes.host_bytes = static_cast<size_t>(options.device_host_memory_bytes);
  WINNOW_ASSIGN_OR_RETURN(std::shared_ptr<DeviceLanes> made, GpuLanes::Create(table, options.device.ordinal, lanes));
  return made;
}

// What selects on the GPU, for the model of the first inference rank that comes.
absl::StatusOr<std::unique_ptr<BatchSelector>> NewGpuSelector(const CacheOptions& options, const ServedShape& shape,
                                                              bool with_lanes) {
  WINNOW_ASSIGN_OR_RETURN(const cuda::CudaTable* table, cuda::LoadPlugin());
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Device> device, table->open_device(options.device.ordinal));
  const std::string name = device->info().name;
  DeviceBatchSelector::Options selector;
  selector.memory_bytes = static_cast<size_t>(options.device_memory_bytes);
  if (with_lanes) selector.memory_bytes = IndexShare(options, device->info().free_bytes);
  selector.on_failure = [](const absl::Status& status) {
    spdlog::error("rows are selected on the CPU from now on: {}", std::string(status.message()));
  };
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<BatchSelector> made,
                          DeviceBatchSelector::Create(table, std::move(device), shape.layout, shape.model, selector));
  spdlog::info("rows are selected on GPU {}, {}", options.device.ordinal, name);
  return made;
}

// Of a rank with two tiers.
void WriteTiers(const CacheRankSnapshot& s, FamilyWriter& writer) {
  auto number = [](uint64_t value) { return static_cast<double>(value); };
  const char* capacity = "Memory for KV, by tier.";
  const uint64_t large_used = (s.blocks_used + s.prefix_idle_blocks) * s.block_bytes;
  writer.Gauge("winnow_tier_capacity_bytes", capacity, number(s.fast_bytes), {{"tier", "fast"}});
  writer.Gauge("winnow_tier_capacity_bytes", capacity, number(s.blocks_total * s.block_bytes), {{"tier", "large"}});
  const char* used =
      "Memory in use, by tier: index, that promised for index, copies of rows and rows on their way in the fast one, "
      "all rows in the large one.";
  const auto gauge = [&](const char* tier, const char* kind, uint64_t bytes) {
    writer.Gauge("winnow_tier_used_bytes", used, number(bytes), {{"tier", tier}, {"kind", kind}});
  };
  gauge("fast", "index", s.fast_index_bytes);
  gauge("fast", "reserved", s.fast_reserved_bytes);
  gauge("fast", "rows", s.fast_copied_bytes);
  gauge("fast", "staging", s.fast_staging_bytes);
  gauge("large", "rows", large_used);
  const char* reads = "KV rows read, by whether the fast tier had them.";
  writer.Counter("winnow_tier_read_rows_total", reads, number(s.tier_hit_rows), {{"result", "hit"}});
  writer.Counter("winnow_tier_read_rows_total", reads, number(s.tier_missed_rows), {{"result", "miss"}});
  writer.Counter("winnow_tier_loaded_rows_total", "KV rows read from the large tier, whole blocks included.",
                 number(s.tier_loaded_rows));
  writer.Counter("winnow_tier_gathers_total", "Reads in which the fast tier lacked a row.", number(s.tier_gathers));
  writer.Counter("winnow_tier_gather_seconds_total", "Time of those.", s.tier_gather_seconds);
  const char* blocks = "Blocks copied to the fast tier, and copies that made room.";
  writer.Counter("winnow_tier_blocks_total", blocks, number(s.tier_blocks_loaded), {{"event", "loaded"}});
  writer.Counter("winnow_tier_blocks_total", blocks, number(s.tier_blocks_evicted), {{"event", "evicted"}});
  writer.Counter("winnow_tier_written_rows_total", "KV rows written to the large tier.", number(s.tier_scattered_rows));
  writer.Counter("winnow_tier_writes_total", "Scatters that wrote them.", number(s.tier_scatters));
  writer.Counter("winnow_tier_write_seconds_total", "Time of those.", s.tier_scatter_seconds);
}

// Of a rank that has a lane.
void WriteMirrors(const CacheRankSnapshot& s, FamilyWriter& writer) {
  const auto gauge = [&](const char* name, const char* help, const char* tier, uint64_t bytes) {
    writer.Gauge(name, help, static_cast<double>(bytes), {{"tier", tier}});
  };
  const char* capacity = "Memory for rows that lanes push, by where it lies: the GPU's, or pinned host memory.";
  gauge("winnow_mirror_capacity_bytes", capacity, "device", s.mirror_device_bytes);
  gauge("winnow_mirror_capacity_bytes", capacity, "host", s.mirror_host_bytes);
  const char* used = "Of that, what sequences have taken.";
  gauge("winnow_mirror_used_bytes", used, "device", s.mirror_device_used_bytes);
  gauge("winnow_mirror_used_bytes", used, "host", s.mirror_host_used_bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CacheHost>> CacheHost::Create(const CacheOptions& options, const v1::Identity& identity,
                                                             std::unique_ptr<Transport> transport) {
  int64_t weight_bytes = 0;
  if (!options.model.empty()) {
    WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model));
    weight_bytes = static_cast<int64_t>(QueryProjection::BytesNeeded(config, options.compute));
  }
  WINNOW_ASSIGN_OR_RETURN(const int64_t memory_bytes, PlanMemory(options, weight_bytes));
  WINNOW_ASSIGN_OR_RETURN(const KernelTable* kernels, CpuKernels());
  CacheRank::Options rank;
  if (!options.model.empty()) {
    WINNOW_ASSIGN_OR_RETURN(rank.projection, QueryProjection::Load(options.model, *kernels, options.compute,
                                                                   ResolveThreads(options.threads)));
  }
  rank.identity = identity;
  rank.num_threads = ResolveThreads(options.threads);
  rank.data_plane.memory_bytes = static_cast<size_t>(memory_bytes);
  rank.data_plane.tiers.fast.memory_bytes = static_cast<size_t>(options.fast_memory_bytes);
  rank.data_plane.detach_ttl = std::chrono::duration_cast<std::chrono::milliseconds>(options.detached_ttl);
  const int64_t prefixes = options.prefix_cache_memory_bytes > 0 ? options.prefix_cache_memory_bytes : memory_bytes;
  rank.data_plane.idle_prefix_bytes = options.prefix_cache ? static_cast<size_t>(prefixes) : 0;
  const bool must_be_gpu = options.device.kind == DeviceChoice::Kind::kCuda;
  if (must_be_gpu) WINNOW_RETURN_IF_ERROR(cuda::LoadPlugin().status());
  if (options.device.kind != DeviceChoice::Kind::kCpu) {
    absl::StatusOr<std::shared_ptr<DeviceLanes>> lanes = NewLanes(options);
    if (lanes.ok()) {
      rank.data_plane.lanes = *std::move(lanes);
      rank.data_plane.on_lane_ended = [](const std::string& inference_rank, const absl::Status& why) {
        spdlog::warn("the lane to {} has ended, its sequences go on by frames: {}", inference_rank,
                     std::string(why.message()));
      };
    } else {
      spdlog::info("rows pass through host memory: {}", std::string(lanes.status().message()));
    }
    const bool with_lanes = rank.data_plane.lanes != nullptr;
    rank.data_plane.new_batch_selector =
        [options, must_be_gpu, with_lanes](const ServedShape& shape) -> absl::StatusOr<std::unique_ptr<BatchSelector>> {
      absl::StatusOr<std::unique_ptr<BatchSelector>> selector = NewGpuSelector(options, shape, with_lanes);
      if (selector.ok() || must_be_gpu) return selector;
      spdlog::info("rows are selected on the CPU: {}", std::string(selector.status().message()));
      return nullptr;
    };
  }
  auto host = std::unique_ptr<CacheHost>(new CacheHost);
  host->rank_ = std::make_unique<CacheRank>(rank, kernels, std::move(transport));
  return host;
}

std::vector<NamedService> CacheHost::services() const {
  const std::vector<grpc::Service*> services = rank_->services();
  return {{services.at(0), v1::CacheService::service_full_name()},
          {services.at(1), v1::TransportService::service_full_name()}};
}

v1::RegisterRequest CacheHost::Registration(const std::string& metrics_address, const std::string& hosted_by) const {
  v1::RegisterRequest request;
  *request.mutable_identity() = rank_->options().identity;
  *request.mutable_fingerprint() = rank_->Fingerprint();
  request.set_metrics_address(metrics_address);
  request.set_hosted_by_rank(hosted_by);
  return request;
}

void WriteMetrics(const CacheRankSnapshot& s, FamilyWriter& writer) {
  auto with = [](const char* key, std::string value) { return MetricLabels{{key, std::move(value)}}; };
  auto counter = [&](const char* name, const char* help, double value) { writer.Counter(name, help, value); };
  auto number = [](uint64_t value) { return static_cast<double>(value); };

  const char* sequences = "Sequences of KV.";
  writer.Gauge("winnow_sequences", sequences, number(s.active_sequences), with("state", "active"));
  writer.Gauge("winnow_sequences", sequences, number(s.detached_sequences), with("state", "detached"));
  writer.Gauge("winnow_cache_shards", "Sequences of which this cache rank holds a part and others the rest.",
               number(s.sharded_sequences));
  const char* blocks =
      "Blocks of 32 rows: used by sequences, promised to them, or free (kept prompts that none uses included).";
  const uint64_t taken = s.blocks_used + s.blocks_reserved;
  writer.Gauge("winnow_kv_blocks", blocks, number(s.blocks_used), with("state", "used"));
  writer.Gauge("winnow_kv_blocks", blocks, number(s.blocks_reserved), with("state", "reserved"));
  writer.Gauge("winnow_kv_blocks", blocks, number(s.blocks_total > taken ? s.blocks_total - taken : 0),
               with("state", "free"));
  writer.Gauge("winnow_prefix_cache_blocks", "Blocks of 32 rows of kept prompts, by whether a sequence uses them.",
               number(s.prefix_blocks - std::min(s.prefix_blocks, s.prefix_idle_blocks)), with("state", "used"));
  writer.Gauge("winnow_prefix_cache_blocks", "Blocks of 32 rows of kept prompts, by whether a sequence uses them.",
               number(s.prefix_idle_blocks), with("state", "idle"));
  writer.Gauge("winnow_prefix_cache_bytes", "Memory of kept prompts.", number(s.prefix_blocks * s.block_bytes));
  counter("winnow_prefix_cache_hits_total", "Sequences that began with cached positions.", number(s.prefix_hits));
  counter("winnow_prefix_cache_lookup_tokens_total", "Prompt tokens that were looked up.",
          number(s.prefix_lookup_tokens));
  counter("winnow_prefix_cache_hit_tokens_total", "Prompt tokens that were there.", number(s.prefix_cached_tokens));
  counter("winnow_prefix_attention_queries_total",
          "Queries of prompts that attended to a cached prefix here, one per position and layer.",
          number(s.prefix_queries));
  counter("winnow_prefix_attention_pieces_total", "Pieces of that work, between which selections go on.",
          number(s.prefix_pieces));
  counter("winnow_prefix_attention_seconds_total", "Time of that work.", s.prefix_attention_seconds);
  counter("winnow_prefix_cache_evictions_total", "Units of 32 positions that gave way.", number(s.prefix_evictions));
  if (s.fast_bytes > 0) WriteTiers(s, writer);
  writer.Gauge("winnow_kv_block_bytes", "Size of a block.", number(s.block_bytes));
  writer.Gauge("winnow_channels", "Open data-plane channels.", number(s.channels));
  writer.Gauge("winnow_queued_frames", "Outgoing frames that wait for the peer's window.", number(s.queued_frames));

  counter("winnow_selection_lookups_total", "Selected rows that were looked up among the resident ones.",
          number(s.selection_lookups));
  counter("winnow_selection_hits_total", "Selected rows that were resident already.", number(s.selection_hits));
  counter("winnow_kv_stream_rows_total", "KV rows sent because they were selected and not resident.",
          number(s.streamed_rows));
  const char* bytes = "Bytes of KV rows on the data plane, as this process sees them.";
  writer.Counter("winnow_kv_stream_bytes_total", bytes, number(s.streamed_bytes), with("direction", "sent"));
  writer.Counter("winnow_kv_stream_bytes_total", bytes, number(s.refilled_bytes), with("direction", "refilled"));
  writer.Counter("winnow_kv_stream_bytes_total", bytes, number(s.prefetched_bytes), with("direction", "prefetched"));
  counter("winnow_prefetched_rows_total", "KV rows sent ahead of any selection.", number(s.prefetched_rows));
  counter("winnow_prefetch_hits_total",
          "Rows sent ahead that were selected while they were resident; part of winnow_selection_hits_total.",
          number(s.prefetch_hits));
  counter("winnow_prefetches_total", "Predictions made to send rows ahead, one per position and layer.",
          number(s.prefetches));
  counter("winnow_appended_rows_total", "KV rows received and stored, one per layer and kv head.",
          number(s.appended_rows));
  counter("winnow_selections_total", "Selections made, one per position and layer.", number(s.selections));
  counter("winnow_selection_seconds_total", "Time spent on selections.", s.selection_seconds);
  counter("winnow_scored_key_bytes_total", "Bytes of keys and page bounds that selections and their measurement read.",
          number(s.scored_key_bytes));
  counter("winnow_scored_page_bytes_total", "Of winnow_scored_key_bytes_total, bounds and cuboid-means of pages.",
          number(s.scored_page_bytes));
  counter("winnow_shared_key_bytes_total",
          "Bytes of keys that selections did without reading, because samples of the same step share them.",
          number(s.shared_key_bytes));
  counter("winnow_query_projections_total", "Queries computed here from residuals, one per position and layer.",
          number(s.projections));
  counter("winnow_plans_total", "Step plans received.", number(s.plans));
  writer.Gauge("winnow_lanes", "Links whose decode steps can run from GPU to GPU (p2p).", number(s.lanes));
  counter("winnow_lane_plans_total", "Of the plans, those that ran from GPU to GPU.", number(s.lane_plans));
  if (s.mirror_device_bytes + s.mirror_host_bytes > 0) WriteMirrors(s, writer);
  const char* seats = "Sequences that asked to decode from GPU to GPU; refused ones go by frames.";
  writer.Counter("winnow_lane_seats_total", seats, number(s.lane_seats), with("outcome", "granted"));
  writer.Counter("winnow_lane_seats_total", seats, number(s.lane_seats_refused), with("outcome", "refused"));
  counter("winnow_frames_received_total", "Data-plane frames received.", number(s.frames_received));
  counter("winnow_kv_integrity_failures_total", "Frames that broke the protocol or their checksum.",
          number(s.frames_malformed));
  counter("winnow_stale_epoch_rejected_total", "Rows and frames of an attachment that is over.",
          number(s.stale_epoch_rejected));
  counter("winnow_rows_refused_total", "Plan rows that broke the protocol.", number(s.rows_refused));
  counter("winnow_transfers_failed_total", "Deltas that could not be sent.", number(s.transfers_failed));
  counter("winnow_admissions_refused_total", "Sequences that did not fit.", number(s.admissions_refused));
  const char* events = "What happened to sequences.";
  writer.Counter("winnow_sequence_events_total", events, number(s.sequences_opened), with("event", "opened"));
  writer.Counter("winnow_sequence_events_total", events, number(s.sequences_attached), with("event", "attached"));
  writer.Counter("winnow_sequence_events_total", events, number(s.sequences_forked), with("event", "forked"));
  writer.Counter("winnow_sequence_events_total", events, number(s.sequences_expired), with("event", "expired"));

  const char* escalations = "What the quality guard and remote correction did: heads corrected, budgets doubled.";
  writer.Counter("winnow_selection_escalations_total", escalations, number(s.missed_top_k),
                 with("action", "missed_top_k"));
  writer.Counter("winnow_selection_escalations_total", escalations, number(s.widened), with("action", "widened"));
  writer.Counter("winnow_selection_escalations_total", escalations, number(s.budget_growths),
                 with("action", "budget_growth"));
  counter("winnow_selection_verdicts_total", "Heads judged by their real query.", number(s.verdicts));
  counter("winnow_correction_rows_total", "KV rows read here to correct attention.", number(s.correction_rows));

  const std::vector<double> bounds(kCapturedMassBounds.begin(), kCapturedMassBounds.end());
  const auto histograms = [&](const char* name, const char* help, const std::vector<CapturedMassSnapshot>& masses) {
    for (size_t layer = 0; layer < masses.size(); ++layer) {
      std::vector<uint64_t> counts(masses[layer].buckets.begin(), masses[layer].buckets.end());
      counts.push_back(0);  // no share exceeds 1
      writer.Histogram(name, help, bounds, counts, masses[layer].sum, with("layer", std::to_string(layer)));
    }
  };
  histograms("winnow_captured_attention_mass",
             "Share of the softmax that the attended rows hold, per position and head, before correction.",
             s.captured_mass);
  counter("winnow_captured_mass_bounds_total",
          "Masses in winnow_captured_attention_mass that are lower bounds, because not every key was scored.",
          number(s.mass_bounds));
  histograms("winnow_corrected_attention_mass",
             "The same with what correction added, of sequences that wait for verdicts.", s.corrected_mass);
}

}  // namespace winnow
