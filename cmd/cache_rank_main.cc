#include "absl/cleanup/cleanup.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/role/cache_host.h"
#include "cmd/role/cache_rank_metrics.h"
#include "cmd/role/link_reports.h"
#include "cmd/role/options/cache_options.h"
#include "cmd/role/options/opentelemetry.h"
#include "cmd/role/payload_paths.h"
#include "cmd/role/role_process.h"

namespace winnow {
namespace {

absl::Status Run(const CacheProcessOptions& options, std::string options_yaml) {
  WINNOW_ASSIGN_OR_RETURN(
      const std::unique_ptr<RoleProcess> process,
      RoleProcess::Begin("cache-rank", v1::ROLE_CACHE_RANK, options.process, std::move(options_yaml), options.join));
  const bool has_tls = process->credentials().encrypted();
  WINNOW_RETURN_IF_ERROR(CheckDataPlane(options.data_plane, has_tls));
  TransportOptions transport_options;
  transport_options.incarnation = process->identity().incarnation();
  transport_options.data_plane_mode = options.data_plane;
  transport_options.keys_are_secret = has_tls;
  const LinkReports links;
  links.Attach(transport_options);
  // Inference ranks choose.
  const PayloadPaths paths(options.cache.device);
  paths.AddP2p(transport_options);
  paths.AddNccl(transport_options);
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, NewUcxTransport(transport_options));
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<CacheHost> host,
                          CacheHost::Create(options.cache, process->identity(), std::move(transport), process->spans(),
                                            process->credentials()));
  CacheRank& rank = host->rank();
  process->metrics().AddSource([&rank, links](FamilyWriter& writer) {
    WriteMetrics(rank.metrics().Snapshot(), writer);
    links.Write(writer);
  });
  rank.Start();
  const absl::Cleanup stop = [&] {
    process->Leave();
    rank.Stop();
    process->Shutdown();
  };
  WINNOW_RETURN_IF_ERROR(process->Serve(host->services(), rank.Fingerprint(), [&rank] { return rank.Load(); },
                                        {{"data plane", &rank.timeline()}}));

  process->Join({{host->Registration(process->metrics_address(), /*hosted_by=*/""), [&rank] { return rank.Load(); }}});
  return process->WaitForStop();
}

int CacheRankMain(const Arguments& arguments) {
  CacheProcessOptions options;
  options.process.tracing = OpenTelemetryDefaults::Read().tracing;
  if (const auto code = ParseCommandLine(kCacheRankCommand, arguments, options)) return *code;
  const absl::Status status = Run(options, DumpYaml(Fields::Of(options)));
  return status.ok() ? 0 : Fail(kCacheRankCommand, status);
}

}  // namespace

const Command kCacheRankCommand = {.name = "cache-rank",
                                   .summary = "run a cache rank",
                                   .synopsis = "[--option=value ...]",
                                   .environment = Environment::kRead,
                                   .options = Declared<CacheProcessOptions>,
                                   .run = CacheRankMain};

}  // namespace winnow
