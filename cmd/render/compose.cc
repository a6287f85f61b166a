#include "absl/strings/str_join.h"
#include "cmd/render/plan.h"
#include "cmd/render/quote.h"

namespace winnow {
namespace {

constexpr int kServiceGrpcPort = 8002;

class Compose {
 public:
  Compose(const DeployPlan& plan, std::string_view source) : plan_(plan) {
    absl::StrAppend(&text_, RenderedHeader("compose", source), "name: ", plan_.deploy.name, "\nservices:\n");
    std::vector<std::string> routers;
    for (int i = 0; i < plan_.routers; ++i) {
      const std::string name = plan_.routers > 1 ? absl::StrCat("router-", i) : "router";
      AddRouter(name, i);
      routers.push_back(name + ":8001");
    }
    for (const RankGroup& group : plan_.groups) {
      for (int i = 0; i < group.count; ++i) {
        const std::string name = absl::StrCat(group.name, "-", i);
        std::vector<std::string> rank = {group.command,
                                         "--rank=" + name,
                                         absl::StrCat("--router=", absl::StrJoin(routers, ",")),
                                         absl::StrCat("--grpc=0.0.0.0:", kServiceGrpcPort),
                                         "--metrics=0.0.0.0:9100",
                                         absl::StrCat("--cluster=", plan_.cluster)};
        rank.insert(rank.end(), group.flags.begin(), group.flags.end());
        Service(name, rank, 10, group.gpus, Volumes(group.needs_model, group.folders), group.memory_bytes, {});
      }
    }
  }
  std::string Take() { return std::move(text_); }

 private:
  void AddRouter(const std::string& name, int index) {
    std::vector<std::string> router = {"router",
                                       "--rank=" + name,
                                       "--http=0.0.0.0:8000",
                                       "--grpc=0.0.0.0:8001",
                                       "--metrics=0.0.0.0:9100",
                                       absl::StrCat("--cluster=", plan_.cluster)};
    router.insert(router.end(), plan_.router_flags.begin(), plan_.router_flags.end());
    const int ports_on = index * kRouterPortStep;
    Service(name, router, plan_.stop_seconds, 0, Volumes(true, plan_.router_folders), 0,
            {absl::StrCat("127.0.0.1:", plan_.http_port + ports_on, ":8000"),
             absl::StrCat("127.0.0.1:", plan_.grpc_port + ports_on, ":8001")});
  }

  std::vector<std::string> Volumes(bool needs_model, const std::vector<MountedFolder>& folders) const {
    std::vector<std::string> volumes;
    if (needs_model) volumes.push_back(absl::StrCat(plan_.model, ":", kModelInContainer, ":ro"));
    for (const MountedFolder& folder : folders) volumes.push_back(absl::StrCat(folder.path, ":", folder.path, ":ro"));
    return volumes;
  }

  void Service(const std::string& name, const std::vector<std::string>& command, int stop_seconds, int gpus,
               const std::vector<std::string>& volumes, int64_t memory_bytes, const std::vector<std::string>& ports) {
    absl::StrAppend(&text_, "  ", name, ":\n    image: ", YamlQuoted(plan_.deploy.image), "\n    command:\n");
    for (const std::string& word : command) {
      // "$" begins a variable of compose.
      absl::StrAppend(&text_, "      - ", YamlQuoted(absl::StrReplaceAll(word, {{"$", "$$"}})), "\n");
    }
    if (!ports.empty()) absl::StrAppend(&text_, "    ports:\n");
    for (const std::string& port : ports) absl::StrAppend(&text_, "      - \"", port, "\"\n");
    if (!volumes.empty()) absl::StrAppend(&text_, "    volumes:\n");
    for (const std::string& volume : volumes) absl::StrAppend(&text_, "      - ", YamlQuoted(volume), "\n");
    absl::StrAppend(
        &text_,
        "    healthcheck:\n      test: [\"CMD\", \"/usr/local/bin/winnow\", \"probe\", \"--path=/health\"]\n"
        "      interval: 5s\n      start_period: 600s\n"
        "    restart: unless-stopped\n    stop_grace_period: ",
        stop_seconds, "s\n",
        "    user: \"65532:65532\"\n    read_only: true\n    tmpfs: [\"/tmp\"]\n"
        "    cap_drop: [\"ALL\"]\n    security_opt: [\"no-new-privileges:true\"]\n");
    const int cpus = plan_.deploy.cpus;
    if (cpus == 0 && memory_bytes == 0 && gpus == 0) return;
    absl::StrAppend(&text_, "    deploy:\n      resources:\n");
    if (cpus > 0 || memory_bytes > 0) absl::StrAppend(&text_, "        limits:\n");
    if (cpus > 0) absl::StrAppend(&text_, "          cpus: \"", cpus, "\"\n");
    if (memory_bytes > 0) absl::StrAppend(&text_, "          memory: \"", memory_bytes, "\"\n");
    if (gpus > 0) {
      absl::StrAppend(&text_,
                      "        reservations:\n          devices:\n            - driver: nvidia\n              count: ",
                      gpus, "\n              capabilities: [gpu]\n");
    }
  }

  const DeployPlan& plan_;
  std::string text_;
};

}  // namespace

absl::StatusOr<RenderedFiles> RenderCompose(const Manifest& manifest, std::string_view source) {
  WINNOW_RETURN_IF_ERROR(CheckMayBeReached(manifest));
  WINNOW_RETURN_IF_ERROR(CheckRegistryIsReached(manifest));
  WINNOW_ASSIGN_OR_RETURN(const DeployPlan plan, PlanCluster(manifest, kModelInContainer));
  return RenderedFiles{{"compose.yaml", Compose(plan, source).Take()}};
}

}  // namespace winnow
