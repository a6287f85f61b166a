#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/inference_rank_metrics.h"
#include "cmd/role_options.h"
#include "cmd/role_process.h"
#include "common/rpc/membership_client.h"
#include "inference_rank/inference_rank.h"
#include "spdlog/spdlog.h"

namespace winnow {
namespace {

absl::StatusOr<InferenceRankOptions> RankOptions(const InferenceProcessOptions& options) {
  InferenceRankOptions rank;
  rank.model_dir = options.model;
  rank.compute_dtype = options.compute;
  rank.kv_dtype = options.kv_dtype;
  rank.isa = options.isa;
  rank.num_threads = ResolveThreads(options.threads);
  rank.max_context_tokens = options.max_context;
  rank.max_running = options.max_running;
  rank.prefill_chunk_tokens = options.prefill_chunk;
  rank.slot_memory_bytes = static_cast<size_t>(options.slot_memory_bytes);
  rank.prefill_memory_bytes = static_cast<size_t>(options.prefill_memory_bytes);
  WINNOW_ASSIGN_OR_RETURN(rank.selection, options.selection.Resolve());
  return rank;
}

absl::Status Run(const InferenceProcessOptions& options, std::string options_yaml) {
  WINNOW_ASSIGN_OR_RETURN(const InferenceRankOptions rank_options, RankOptions(options));
  WINNOW_ASSIGN_OR_RETURN(
      const std::unique_ptr<RoleProcess> process,
      RoleProcess::Begin("inference-rank", v1::ROLE_INFERENCE_RANK, options.process, std::move(options_yaml)));
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                          NewUcxTransport({.incarnation = process->identity().incarnation(), .ucx_tls = {}}));
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<InferenceRank> rank,
                          InferenceRank::Create(rank_options, std::move(transport), process->identity()));
  spdlog::info("memory plan:\n{}", rank->memory_plan().ToString());
  process->metrics().AddSource([&rank](FamilyWriter& writer) { WriteMetrics(rank->metrics(), writer); });
  rank->Start();

  std::vector<NamedService> services;
  for (grpc::Service* service : rank->services()) services.push_back(Named<v1::RankService>(service));
  WINNOW_RETURN_IF_ERROR(process->Serve(std::move(services), rank->fingerprint(), [&rank] { return rank->load(); }));

  absl::Status end;
  {
    MembershipClient::Options membership;
    membership.router_address = options.router.ToString();
    *membership.registration.mutable_identity() = process->identity();
    *membership.registration.mutable_fingerprint() = rank->fingerprint();
    *membership.registration.mutable_limits() = rank->limits();
    membership.registration.set_metrics_address(process->metrics_address());
    membership.load = [&rank] { return rank->load(); };
    membership.on_serving = [&process](bool serving) {
      process->server().SetServing(serving);
      if (serving) process->report().Ready();
    };
    membership.on_refused = [&process](const absl::Status& status) { process->Fail(status); };
    const MembershipClient client(std::move(membership));
    end = process->WaitForStop();
  }
  // Gone from the router's table: no new work comes. What is under way is failed as retryable, and continued elsewhere.
  rank->Stop();
  process->Shutdown();
  return end;
}

}  // namespace

int InferenceRankMain(const Arguments& arguments) {
  InferenceProcessOptions options;
  if (const auto code = ParseCommandLine("inference-rank", "--model DIR [--config FILE.yaml] [--option=value ...]",
                                         arguments, options)) {
    return *code;
  }
  const absl::Status status = Run(options, DumpYaml(Fields::Of(options)));
  return status.ok() ? 0 : Fail("inference-rank", status);
}

}  // namespace winnow
