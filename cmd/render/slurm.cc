#include <algorithm>

#include "absl/strings/str_join.h"
#include "cmd/render/plan.h"
#include "cmd/render/quote.h"

namespace winnow {
namespace {

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

}  // namespace

// A heterogeneous job: the router, then each group of ranks. It ends when one of its steps does.
absl::StatusOr<RenderedFiles> RenderSlurm(const Manifest& manifest, std::string_view source) {
  WINNOW_RETURN_IF_ERROR(CheckMayBeReached(manifest));
  WINNOW_ASSIGN_OR_RETURN(const DeployPlan plan, PlanCluster(manifest, ""));
  std::string text = absl::StrCat("#!/bin/bash\n", RenderedHeader("slurm", source),
                                  "#SBATCH --job-name=", plan.deploy.name, "\n", "#SBATCH --ntasks=1\n");
  for (const RankGroup& group : plan.groups) {
    absl::StrAppend(&text, "#SBATCH hetjob\n", Component(plan, group.count, group.gpus));
  }
  absl::StrAppend(&text,
                  "set -euo pipefail\n"
                  "winnow=${WINNOW:-winnow}\n"
                  "nodes=${SLURM_JOB_NODELIST_HET_GROUP_0:-$SLURM_JOB_NODELIST}\n"
                  "router=$(scontrol show hostnames \"$nodes\" | head -n 1)\n\n"
                  "srun --het-group=0 \"$winnow\" router --http=0.0.0.0:",
                  plan.http_port, " --grpc=0.0.0.0:", plan.grpc_port, " --metrics=0.0.0.0:", plan.metrics_port,
                  " --cluster=", plan.cluster);
  for (const std::string& flag : plan.router_flags) absl::StrAppend(&text, " ", ShellQuoted(flag));
  absl::StrAppend(&text, " &\n");
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const RankGroup& group = plan.groups[i];
    // A task's number is its rank's. Listening on all addresses, it advertises the one towards the router.
    absl::StrAppend(&text, "srun --het-group=", i + 1, " bash -c 'exec \"$0\" ", group.command, " --rank=", group.name,
                    "-$SLURM_PROCID \"$@\"' \"$winnow\" \\\n  --router=\"$router\":", plan.grpc_port,
                    " --grpc=0.0.0.0:0 --metrics=0.0.0.0:0 --cluster=", plan.cluster);
    for (const std::string& flag : group.flags) absl::StrAppend(&text, " ", ShellQuoted(flag));
    absl::StrAppend(&text, " &\n");
  }
  absl::StrAppend(&text, "\necho \"http://$router:", plan.http_port,
                  "\"\n# Slurm tells the steps to end when the job is cancelled.\nwait -n\n");
  return RenderedFiles{{plan.deploy.name + ".sbatch", text}};
}

}  // namespace winnow
