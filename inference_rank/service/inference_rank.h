#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/config/device_choice.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "common/selection/selection_spec.h"
#include "common/tracing/trace_span.h"
#include "inference_rank/backend/backend.h"
#include "inference_rank/engine/engine.h"
#include "inference_rank/metrics.h"
#include "inference_rank/scheduler/scheduling_options.h"
#include "inference_rank/sequence/grammar_cache.h"
#include "inference_rank/service/rank_service.h"
#include "kernels/kernel_table.h"
#include "transport/transport.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

struct InferenceRankOptions {
  std::string model_dir;
  Dtype compute_dtype = Dtype::kBf16;  // of weights and matmul inputs: kBf16 or kF32
  Dtype kv_dtype = Dtype::kBf16;       // kBf16 or kF32
  DeviceChoice device;
  int tensor_parallel = 0;   // GPUs that hold the model together; 0: those that `device` names
  std::string isa = "auto";  // CpuKernels
  int num_threads = 1;
  uint32_t max_context_tokens = 0;  // 0 = the model's
  uint32_t max_running = 64;
  uint32_t prefill_chunk_tokens = 0;  // 0 = 512 on a CPU, 2048 on a GPU
  PrefillMode prefill_mode = PrefillMode::kAuto;
  PrefixAttention prefix_attention = PrefixAttention::kAuto;
  bool keep_prefixes = true;  // see Engine::Options
  // Called after a prompt that was prefilled layer by layer; see Engine::Options.
  std::function<void(uint32_t prompt_tokens, size_t kv_bytes, size_t residual_bytes)> on_prefilled_by_layer = nullptr;
  SchedulingOptions scheduling;
  size_t slot_memory_bytes = 0;       // 0 = automatic, see memory_plan.h
  size_t slot_host_memory_bytes = 0;  // behind those of a GPU; 0 = none
  size_t prefill_memory_bytes = 0;    // 0 = automatic
  SelectionSpec selection;            // the server's default; requests may go up to its budget
  // File of a HeadProfile that requests may come resolved with: memory is planned for it. Empty: none.
  std::string head_profile;
  ResumeLimits resume;
  DataPlaneWaits waits;
  Credentials credentials = {};  // towards cache ranks
  // The GPU has failed for good, and every sequence has been failed over: the process has to end. Called once, on the
  // engine thread, with what a post-mortem needs.
  std::function<void(const absl::Status& why, const std::string& dump)> on_device_failure = nullptr;
  // Decode steps may run between this rank's GPU and cache ranks', where those can reach each other.
  bool offers_peer_links = false;
  // As in BackendOptions.
  std::optional<bool> selects_in_place = std::nullopt;
  // A link to that cache rank was made, and has a peer link, or why not; UNAVAILABLE when a peer link has failed. On
  // the engine thread.
  std::function<void(const std::string& cache_rank, const absl::Status& peer_link)> on_peer_link = nullptr;
  SpanSink* spans = nullptr;  // of traced requests; null: none are traced
};

struct RankModel;

// Every part of an inference rank, wired: weights, forward pass, engine, services. The process (cmd/) gives it a
// transport and an identity, registers its services on a server and tells the router about it.
class InferenceRank {
 public:
  // Reads and validates the model, checks that everything fits memory, loads the weights. `identity.address` is where
  // its services will listen. Errors name the file or option and the limit.
  static absl::StatusOr<std::unique_ptr<InferenceRank>> Create(const InferenceRankOptions& options,
                                                               std::unique_ptr<Transport> transport,
                                                               const v1::Identity& identity);
  ~InferenceRank();

  void Start() { engine_->Start(); }
  void Stop() { engine_->Stop(); }
  std::vector<grpc::Service*> services() { return {service_.get()}; }

  // Cache ranks that a router has given up for their silence. Any thread.
  void NoteExpired(std::span<const v1::Identity> cache_ranks) { engine_->NoteExpired(cache_ranks); }

  const v1::Fingerprint& fingerprint() const { return fingerprint_; }
  v1::ModelLimits limits() const;
  // Any thread.
  v1::RankLoad load() const;
  const InferenceRankMetrics& metrics() const { return *metrics_; }
  Timeline& timeline() { return metrics_->timeline; }
  const MemoryPlan& memory_plan() const { return backend_->memory_plan(); }
  // What computes, and with device auto why no GPU does.
  const std::string& device_description() const { return device_description_; }
  const ModelConfig& config() const;
  // Of the model's files, to be logged once.
  std::vector<std::string> warnings() const;

 private:
  InferenceRank() = default;
  absl::Status ChooseBackend();
  // For rows and checksums of frames: the backend's, or, where a GPU computes, half of the threads that the rank may
  // have, because the cache rank of the same host uses as many at the same time.
  absl::StatusOr<ParallelFor> HostThreads();

  InferenceRankOptions options_;
  std::unique_ptr<RankModel> model_;
  KvLayout layout_;
  v1::Fingerprint fingerprint_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Executor> host_executor_;  // null: the backend has threads
  std::string device_description_;
  std::unique_ptr<InferenceRankMetrics> metrics_;
  std::unique_ptr<GrammarCache> grammars_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RankServiceImpl> service_;
};

}  // namespace winnow
