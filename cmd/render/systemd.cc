#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cmd/render/plan.h"
#include "common/config/host_address.h"

namespace winnow {
namespace {

// A unit for each process of one machine, and a target that starts and stops them together.
class Units {
 public:
  Units(const DeployPlan& plan, const UpOptions& part, std::string folder, std::string header)
      : plan_(plan), part_(part), folder_(std::move(folder)), header_(std::move(header)) {
    if (plan_.has_router) AddRouter();
    int process = 1;
    for (const RankGroup& group : plan_.groups) {
      for (int i = 0; i < group.count; ++i) AddRank(group, i, process++);
    }
    std::string wants;
    for (const RenderedFile& file : files_) {
      absl::StrAppend(&wants, " ", file.path.substr(file.path.rfind('/') + 1));
    }
    Add(plan_.deploy.name + ".target", absl::StrCat("[Unit]\nDescription=Winnow cluster ", plan_.cluster, "\nWants=",
                                                    wants.substr(1), "\n\n[Install]\nWantedBy=multi-user.target\n"));
  }
  RenderedFiles Take() { return std::move(files_); }

 private:
  void Add(const std::string& name, const std::string& text) {
    files_.push_back({folder_.empty() ? name : absl::StrCat(folder_, "/", name), header_ + text});
  }

  // "%" begins a specifier of systemd, "$" a variable.
  static std::string Escape(const std::string& word) {
    return absl::StrReplaceAll(word, {{"%", "%%"}, {"$", "$$"}, {" ", "\\x20"}, {"\\", "\\\\"}});
  }

  void AddUnit(const std::string& name, std::vector<std::string> command, const std::vector<std::string>& flags,
               const std::string& after, int stop_seconds, int gpus) {
    command.insert(command.begin(), "/usr/bin/winnow");
    command.push_back(absl::StrCat("--cluster=", plan_.cluster));
    command.insert(command.end(), flags.begin(), flags.end());
    for (std::string& word : command) word = Escape(word);
    std::string text = absl::StrCat(
        "[Unit]\nDescription=Winnow ", name, "\nPartOf=", plan_.deploy.name, ".target\nAfter=network-online.target",
        after, "\nWants=network-online.target\n\n", "[Service]\nExecStart=", absl::StrJoin(command, " \\\n  "), "\n",
        "Restart=always\nRestartSec=1\n",
        "# A wrong command line is not mended by another start.\nRestartPreventExitStatus=2\n",
        "KillSignal=SIGTERM\nTimeoutStopSec=", stop_seconds, "\nLimitNOFILE=65536\n", "LimitMEMLOCK=infinity\n");
    if (plan_.deploy.memory_bytes > 0 && name != "router-0") {
      absl::StrAppend(&text, "MemoryMax=", plan_.deploy.memory_bytes, "\n");
    }
    if (plan_.deploy.cpus > 0 && name != "router-0")
      absl::StrAppend(&text, "CPUQuota=", 100 * plan_.deploy.cpus, "%\n");
    absl::StrAppend(&text, "DynamicUser=yes\nUser=", plan_.deploy.name,
                    "\nNoNewPrivileges=yes\nProtectSystem=strict\nProtectHome=read-only\nPrivateTmp=yes\n",
                    gpus > 0 ? "" : "PrivateDevices=yes\n",
                    "ProtectKernelTunables=yes\nProtectKernelModules=yes\nProtectControlGroups=yes\n"
                    "RestrictSUIDSGID=yes\nRestrictRealtime=yes\nLockPersonality=yes\n"
                    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\nCapabilityBoundingSet=\n\n"
                    "[Install]\nWantedBy=",
                    plan_.deploy.name, ".target\n");
    Add(absl::StrCat(plan_.deploy.name, "-", name, ".service"), text);
  }

  void AddRouter() {
    AddUnit("router-0",
            {"router", "--http=" + part_.http.ToString(), "--grpc=" + part_.grpc.ToString(),
             "--metrics=" + part_.metrics.ToString()},
            plan_.router_flags, "", plan_.stop_seconds, 0);
  }

  void AddRank(const RankGroup& group, int index, int process) {
    const std::string name = absl::StrCat(group.name, "-", group.first + index);
    HostPort router = plan_.has_router ? part_.grpc : part_.part.router;
    if (IsWildcardHost(router.host)) router.host = part_.part.host.empty() ? "127.0.0.1" : part_.part.host;
    std::vector<std::string> command = {group.command, "--rank=" + name, "--router=" + router.ToString(),
                                        "--metrics=" + part_.MetricsAddress(process).ToString()};
    if (!part_.part.host.empty()) command.push_back(absl::StrCat("--grpc=", HostPort{part_.part.host, 0}.ToString()));
    std::vector<std::string> flags = group.flags;
    if (group.gpus > 0) {
      std::string gpus;
      const int first =
          (group.command == "cache-rank" ? part_.cache_device : part_.device).ordinal + index * group.gpus;
      for (int i = 0; i < group.gpus; ++i) absl::StrAppend(&gpus, i == 0 ? "" : ",", first + i);
      std::erase(flags, "--device=cuda");
      flags.push_back("--device=cuda:" + gpus);
    }
    const std::string after =
        plan_.has_router ? absl::StrCat(" ", plan_.deploy.name, "-router-0.service") : std::string();
    AddUnit(name, std::move(command), flags, after, 15, group.gpus);
  }

  const DeployPlan& plan_;
  const UpOptions& part_;
  const std::string folder_;
  const std::string header_;
  RenderedFiles files_;
};

}  // namespace

absl::StatusOr<RenderedFiles> RenderSystemd(const Manifest& manifest, std::string_view source) {
  RenderedFiles files;
  std::vector<std::string> nodes = {""};
  if (!manifest.nodes.empty()) nodes.clear();
  for (const ManifestNode& node : manifest.nodes) nodes.push_back(node.name);
  for (const std::string& node : nodes) {
    WINNOW_ASSIGN_OR_RETURN(const UpOptions part, manifest.OptionsOf(node));
    const DeployPlan plan = PlanPart(part, manifest.deploy, "");
    for (RenderedFile& file : Units(plan, part, node, RenderedHeader("systemd", source)).Take()) {
      files.push_back(std::move(file));
    }
  }
  return files;
}

}  // namespace winnow
