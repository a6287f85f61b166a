#include <algorithm>

#include "absl/strings/str_join.h"
#include "cmd/render/plan.h"
#include "cmd/render/quote.h"

namespace winnow {
namespace {

constexpr int kJobStopSeconds = 15;

// Tasks of a component may share a node, and memory of a node is asked for by its cores.
std::string Component(const RankGroup& ranks, int cpus) {
  std::string text = absl::StrCat("#SBATCH --ntasks=", ranks.count, "\n");
  if (cpus > 0) absl::StrAppend(&text, "#SBATCH --cpus-per-task=", cpus, "\n");
  if (ranks.memory_bytes > 0) {
    const int64_t bytes_per_cpu = ranks.memory_bytes / std::max(1, cpus);
    absl::StrAppend(&text, "#SBATCH --mem-per-cpu=", (bytes_per_cpu + (1 << 20) - 1) >> 20, "M\n");
  }
  if (ranks.gpus > 0) absl::StrAppend(&text, "#SBATCH --gpus-per-task=", ranks.gpus, "\n");
  return text;
}

// Routers have a node each, as they listen on the same ports.
std::string RouterComponent(int routers) {
  return routers > 1 ? absl::StrCat("#SBATCH --nodes=", routers, " --ntasks=", routers, " --ntasks-per-node=1\n")
                     : "#SBATCH --ntasks=1\n";
}

constexpr char kAddresses[] = R"sh(addresses=()
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0"); do
  addresses+=("$(scontrol --oneliner show node "$node" | sed 's/.* NodeAddr=\([^ ]*\).*/\1/')")
done
)sh";

// The beginning of a step, whose tasks' numbers are those of its processes.
std::string StepOf(size_t het_group, const std::string& name) {
  return absl::StrCat("srun --het-group=", het_group, " bash -c 'exec bash -c \"$0\" \"$@\" --rank=", name,
                      "-$SLURM_PROCID");
}

// What each task runs: "$0" is the program. It starts again what ends, but not after a stop, a success, or a wrong
// command line (2). SIGTERM reaches the program from Slurm itself, as all processes of a step get it; SIGUSR1 is for
// the shell.
constexpr char kKeep[] = R"(keep='trap stopping=1 TERM
trap "stopping=1; kill \$child" USR1
while :; do
  (trap "" USR1; exec "$0" "$@") & child=$!
  status=0; wait "$child" || status=$?
  if [[ -n ${stopping:-} ]]; then wait "$child"; exit; fi
  if ((status == 0 || status == 2)); then exit "$status"; fi
  echo "$1 of task $SLURM_PROCID has ended with $status and is started again" >&2
  sleep 1
done'
)";

// srun passes SIGUSR1 on to its tasks, where SIGTERM would make it kill them.
constexpr char kDrain[] = R"(
# Routers end first, while ranks finish what they still answer: before the time limit of the job, and on
# `scancel --batch --signal=USR1 JOB`. `scancel JOB` ends all at once.
drain() {
  trap "" USR1
  kill -USR1 "$routers_step"
  wait "$routers_step" || true
  kill -USR1 "${ranks[@]}"
  wait
  exit 0
}
trap drain USR1
)";

}  // namespace

// A heterogeneous job: the routers, then each group of ranks. It ends when one of its steps does.
absl::StatusOr<RenderedFiles> RenderSlurm(const Manifest& manifest, std::string_view source) {
  WINNOW_RETURN_IF_ERROR(CheckMayBeReached(manifest));
  WINNOW_RETURN_IF_ERROR(CheckRegistryIsReached(manifest));
  WINNOW_RETURN_IF_ERROR(CheckPortsAreKnown(manifest));
  WINNOW_ASSIGN_OR_RETURN(const DeployPlan plan, PlanCluster(manifest, ""));
  std::string text = absl::StrCat("#!/bin/bash\n", RenderedHeader("slurm", source),
                                  "#SBATCH --job-name=", plan.deploy.name, "\n#SBATCH --signal=B:USR1@",
                                  plan.stop_seconds + kJobStopSeconds, "\n", RouterComponent(plan.routers));
  for (const RankGroup& group : plan.groups) {
    absl::StrAppend(&text, "#SBATCH hetjob\n", Component(group, plan.deploy.cpus));
  }
  absl::StrAppend(&text, "set -euo pipefail\nwinnow=${WINNOW:-winnow}\n", kAddresses,
                  "printf -v routers '%s:", plan.grpc_port, ",' \"${addresses[@]}\"\n\n", kKeep, "\n",
                  StepOf(0, "router"), "' \"$keep\" \\\n", "  \"$winnow\" router --http=0.0.0.0:", plan.http_port,
                  " --grpc=0.0.0.0:", plan.grpc_port, " --metrics=0.0.0.0:", plan.metrics_port,
                  " --cluster=", plan.cluster);
  for (const std::string& flag : plan.router_flags) absl::StrAppend(&text, " ", ShellWord(flag));
  absl::StrAppend(&text, " &\nrouters_step=$!\nranks=()\n");
  int metrics_port = plan.metrics_port + 1;
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const RankGroup& group = plan.groups[i];
    // Listening on all addresses, it advertises the one towards the routers.
    absl::StrAppend(&text, StepOf(i + 1, group.name), " --metrics=0.0.0.0:$((", metrics_port,
                    " + SLURM_PROCID))' \"$keep\" \\\n  \"$winnow\" ", group.command,
                    " --router=\"${routers%,}\" --grpc=0.0.0.0:0 --cluster=", plan.cluster);
    for (const std::string& flag : group.flags) absl::StrAppend(&text, " ", ShellWord(flag));
    absl::StrAppend(&text, " &\nranks+=($!)\n");
    metrics_port += group.count;
  }
  absl::StrAppend(&text, kDrain, "printf 'http://%s:", plan.http_port, "\\n' \"${addresses[@]}\"\nwait -n\n");
  return RenderedFiles{{plan.deploy.name + ".sbatch", text}};
}

}  // namespace winnow
