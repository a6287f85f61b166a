#include <algorithm>

#include "absl/strings/str_join.h"
#include "cmd/render/plan.h"
#include "cmd/render/quote.h"

namespace winnow {
namespace {

constexpr int kRankStopSeconds = 15;

std::string Component(const DeployPlan& plan, int tasks, int gpus) {
  std::string text = absl::StrCat("#SBATCH --ntasks=", tasks, "\n");
  if (plan.deploy.cpus > 0) absl::StrAppend(&text, "#SBATCH --cpus-per-task=", plan.deploy.cpus, "\n");
  if (plan.deploy.memory_bytes > 0) {
    absl::StrAppend(&text, "#SBATCH --mem-per-cpu=",
                    std::max<int64_t>(1, plan.deploy.memory_bytes / std::max(1, plan.deploy.cpus) >> 20), "M\n");
  }
  if (gpus > 0) absl::StrAppend(&text, "#SBATCH --gpus-per-task=", gpus, "\n");
  return text;
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
# The router ends first, while ranks finish what it still answers: before the time limit of the job, and on
# `scancel --batch --signal=USR1 JOB`. `scancel JOB` ends all at once.
drain() {
  trap "" USR1
  kill -USR1 "$router"
  wait "$router" || true
  kill -USR1 "${ranks[@]}"
  wait
  exit 0
}
trap drain USR1
)";

}  // namespace

// A heterogeneous job: the router, then each group of ranks. It ends when one of its steps does.
absl::StatusOr<RenderedFiles> RenderSlurm(const Manifest& manifest, std::string_view source) {
  WINNOW_RETURN_IF_ERROR(CheckMayBeReached(manifest));
  WINNOW_ASSIGN_OR_RETURN(const DeployPlan plan, PlanCluster(manifest, ""));
  std::string text =
      absl::StrCat("#!/bin/bash\n", RenderedHeader("slurm", source), "#SBATCH --job-name=", plan.deploy.name,
                   "\n#SBATCH --signal=B:USR1@", plan.stop_seconds + kRankStopSeconds, "\n#SBATCH --ntasks=1\n");
  for (const RankGroup& group : plan.groups) {
    absl::StrAppend(&text, "#SBATCH hetjob\n", Component(plan, group.count, group.gpus));
  }
  absl::StrAppend(&text,
                  "set -euo pipefail\n"
                  "winnow=${WINNOW:-winnow}\n"
                  "node=$(scontrol show hostnames \"$SLURM_JOB_NODELIST_HET_GROUP_0\")\n"
                  "address=$(scontrol --oneliner show node \"$node\" | sed 's/.* NodeAddr=\\([^ ]*\\).*/\\1/')\n\n",
                  kKeep, "\nsrun --het-group=0 bash -c \"$keep\" \"$winnow\" router --http=0.0.0.0:", plan.http_port,
                  " --grpc=0.0.0.0:", plan.grpc_port, " --metrics=0.0.0.0:", plan.metrics_port,
                  " --cluster=", plan.cluster);
  for (const std::string& flag : plan.router_flags) absl::StrAppend(&text, " ", ShellWord(flag));
  absl::StrAppend(&text, " &\nrouter=$!\nranks=()\n");
  int metrics_port = plan.metrics_port + 1;
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const RankGroup& group = plan.groups[i];
    // A task's number is its rank's. Listening on all addresses, it advertises the one towards the router.
    absl::StrAppend(&text, "srun --het-group=", i + 1, " bash -c 'exec bash -c \"$0\" \"$@\" --rank=", group.name,
                    "-$SLURM_PROCID --metrics=0.0.0.0:$((", metrics_port,
                    " + SLURM_PROCID))' \"$keep\" \\\n  \"$winnow\" ", group.command,
                    " --router=\"$address\":", plan.grpc_port, " --grpc=0.0.0.0:0 --cluster=", plan.cluster);
    for (const std::string& flag : group.flags) absl::StrAppend(&text, " ", ShellWord(flag));
    absl::StrAppend(&text, " &\nranks+=($!)\n");
    metrics_port += group.count;
  }
  absl::StrAppend(&text, kDrain, "echo \"http://$address:", plan.http_port, "\"\nwait -n\n");
  return RenderedFiles{{plan.deploy.name + ".sbatch", text}};
}

}  // namespace winnow
