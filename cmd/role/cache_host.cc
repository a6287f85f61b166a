#include "cmd/role/cache_host.h"

#include "cache_rank/select/device/device_index_selector.h"
#include "cache_rank/select/predictor/query_projection.h"
#include "cache_rank/step/device/gpu_peer_links.h"
#include "cmd/role/cache_memory.h"
#include "cmd/role/machine.h"
#include "common/base/logging.h"
#include "common/rpc/channel.h"
#include "kernels/kernel_table.h"
#include "kernels/plugin/plugin.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/replication.grpc.pb.h"
#include "winnow/v1/transport.grpc.pb.h"

namespace winnow {
namespace {

// Of the GPU's memory, what the index of sequences without a peer link takes beside peer links.
size_t IndexShare(const CacheOptions& options, size_t free_bytes) {
  return (options.device_memory_bytes > 0 ? static_cast<size_t>(options.device_memory_bytes) : free_bytes) / 4;
}

// Where rows can go from GPU to GPU: none where there is one GPU alone. FAILED_PRECONDITION or UNAVAILABLE say why not.
absl::StatusOr<std::shared_ptr<DevicePeerLinks>> NewPeerLinks(const CacheOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const device::DeviceTable* table, device::LoadPlugin());
  if (table->device_count() < 2) return absl::FailedPreconditionError("there is one GPU alone");
  GpuPeerLinks::Options peer_links;
  peer_links.model = options.peer_model.empty() ? options.model : options.peer_model;
  peer_links.memory_bytes = static_cast<size_t>(options.device_memory_bytes) / 4 * 3;
  peer_links.host_bytes = static_cast<size_t>(options.device_host_memory_bytes);
  WINNOW_ASSIGN_OR_RETURN(std::shared_ptr<DevicePeerLinks> made,
                          GpuPeerLinks::Create(table, options.device.ordinal, peer_links));
  return made;
}

// What selects on the GPU, for the model of the first inference rank that comes.
absl::StatusOr<std::unique_ptr<BatchSelector>> NewGpuSelector(const CacheOptions& options, const ServedShape& shape,
                                                              bool with_peer_links) {
  WINNOW_ASSIGN_OR_RETURN(const device::DeviceTable* table, device::LoadPlugin());
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<device::Device> device, table->open_device(options.device.ordinal));
  const std::string name = device->info().name;
  DeviceIndexSelector::Options selector;
  selector.memory_bytes = static_cast<size_t>(options.device_memory_bytes);
  if (with_peer_links) selector.memory_bytes = IndexShare(options, device->info().free_bytes);
  selector.on_failure = [](const absl::Status& status) {
    spdlog::error("rows are selected on the CPU from now on: {}", std::string(status.message()));
  };
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<BatchSelector> made,
                          DeviceIndexSelector::Create(table, std::move(device), shape.layout, shape.model, selector));
  spdlog::info("rows are selected on GPU {}, {}", options.device.ordinal, name);
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CacheHost>> CacheHost::Create(const CacheOptions& options, const v1::Identity& identity,
                                                             std::unique_ptr<Transport> transport, SpanSink* spans,
                                                             const Credentials& credentials) {
  int64_t weight_bytes = 0;
  if (!options.model.empty()) {
    WINNOW_ASSIGN_OR_RETURN(const size_t bytes, QueryProjection::BytesNeeded(options.model, options.compute));
    weight_bytes = static_cast<int64_t>(bytes);
  }
  WINNOW_ASSIGN_OR_RETURN(const CacheMemoryPlan memory, PlanCacheMemory(options, weight_bytes, FreeMemoryBytes()));
  spdlog::info("memory plan: {}", memory.ToString());
  WINNOW_ASSIGN_OR_RETURN(const KernelTable* kernels, CpuKernels());
  CacheRank::Options rank;
  if (!options.model.empty()) {
    WINNOW_ASSIGN_OR_RETURN(rank.projection, QueryProjection::Load(options.model, *kernels, options.compute,
                                                                   ResolveThreads(options.threads)));
  }
  rank.identity = identity;
  rank.spans = spans;
  rank.channels = [credentials](const std::string& address) { return NewChannel(address, credentials); };
  rank.num_threads = ResolveThreads(options.threads);
  rank.data_plane.memory_bytes = static_cast<size_t>(memory.kv_bytes);
  rank.data_plane.tiers.fast.memory_bytes = static_cast<size_t>(options.fast_memory_bytes);
  rank.data_plane.scrub_bytes_per_s = static_cast<uint64_t>(options.scrub_bytes_per_s);
  rank.data_plane.on_damage = [](uint64_t, const std::string& what) {
    spdlog::error(
        "a stored row is not what was written, its sequence is given up to go on with its replica or to be computed "
        "anew: {}",
        what);
  };
  rank.data_plane.detach_ttl = std::chrono::duration_cast<std::chrono::milliseconds>(options.detached_ttl);
  const int64_t prefixes = options.prefix_cache_memory_bytes > 0 ? options.prefix_cache_memory_bytes : memory.kv_bytes;
  rank.data_plane.idle_prefix_bytes = options.prefix_cache ? static_cast<size_t>(prefixes) : 0;
  const bool must_be_gpu = options.device.kind == DeviceChoice::Kind::kGpu;
  if (must_be_gpu) WINNOW_RETURN_IF_ERROR(device::LoadPlugin().status());
  if (options.device.kind != DeviceChoice::Kind::kCpu) {
    absl::StatusOr<std::shared_ptr<DevicePeerLinks>> peer_links = NewPeerLinks(options);
    if (peer_links.ok()) {
      rank.data_plane.peer_links = *std::move(peer_links);
      rank.data_plane.on_peer_link_ended = [](const std::string& inference_rank, const absl::Status& why) {
        spdlog::warn("the peer link to {} has ended, its sequences go on by frames: {}", inference_rank,
                     std::string(why.message()));
      };
    } else {
      spdlog::info("rows pass through host memory: {}", std::string(peer_links.status().message()));
    }
    const bool with_peer_links = rank.data_plane.peer_links != nullptr;
    rank.data_plane.new_batch_selector =
        [options, must_be_gpu,
         with_peer_links](const ServedShape& shape) -> absl::StatusOr<std::unique_ptr<BatchSelector>> {
      absl::StatusOr<std::unique_ptr<BatchSelector>> selector = NewGpuSelector(options, shape, with_peer_links);
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
          {services.at(1), v1::TransportService::service_full_name()},
          {services.at(2), v1::ReplicationService::service_full_name()}};
}

v1::RegisterRequest CacheHost::Registration(const std::string& metrics_address, const std::string& hosted_by) const {
  v1::RegisterRequest request;
  *request.mutable_identity() = rank_->options().identity;
  *request.mutable_fingerprint() = rank_->Fingerprint();
  request.set_metrics_address(metrics_address);
  request.set_hosted_by_rank(hosted_by);
  return request;
}

}  // namespace winnow
