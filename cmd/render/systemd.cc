#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cmd/render/plan.h"
#include "common/config/host_address.h"

namespace winnow {
namespace {

constexpr int kUnitStopSeconds = 15;

// Not MemoryDenyWriteExecute, as kernels and regular expressions are compiled at run time; not PrivateUsers nor
// ProcSubset, as ranks of a machine read each other's memory and the sizes of the machine.
constexpr char kSandbox[] = R"(NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
PrivateTmp=yes
RestrictNamespaces=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
CapabilityBoundingSet=
UMask=0077
)";

// Of one machine: a unit of each router, a template for each kind of rank with a drop-in for what each rank has of its
// own, and a target that starts and stops them together.
class Units {
 public:
  Units(const DeployPlan& plan, const UpOptions& part, std::string folder, std::string header)
      : plan_(plan), part_(part), folder_(std::move(folder)), header_(std::move(header)) {
    int process = part_.routers;
    for (const RankGroup& group : plan_.groups) {
      AddTemplate(group);
      for (int i = 0; i < group.count; ++i) AddRank(group, i, process++);
    }
    for (int i = 0; i < plan_.routers; ++i) AddRouter(i);
    units_.insert(units_.end(), router_units_.begin(), router_units_.end());
    Add(plan_.deploy.name + ".target",
        absl::StrCat("[Unit]\nDescription=Winnow cluster ", plan_.cluster, "\nWants=", absl::StrJoin(units_, " "),
                     "\n\n[Install]\nWantedBy=multi-user.target\n"));
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

  void AddUnit(const std::string& name, const std::string& description, std::vector<std::string> command,
               const std::vector<std::string>& flags, const std::string& more, int stop_seconds,
               const RankGroup* ranks) {
    command.insert(command.begin(), "/usr/bin/winnow");
    command.push_back(absl::StrCat("--cluster=", plan_.cluster));
    for (std::string& word : command) word = absl::StrReplaceAll(word, {{" ", "\\x20"}});
    for (const std::string& flag : flags) command.push_back(Escape(flag));
    std::string text = absl::StrCat(
        "[Unit]\nDescription=Winnow ", description, "\nPartOf=", plan_.deploy.name,
        ".target\nAfter=", absl::StrJoin(After(name), " "),
        "\nWants=network-online.target\n\n[Service]\nExecStart=", absl::StrJoin(command, " \\\n  "), "\n", more,
        "Restart=always\nRestartSec=1\n"
        "# A wrong command line is not mended by another start.\n"
        "RestartPreventExitStatus=2\nTimeoutStopSec=",
        stop_seconds, "\nLimitNOFILE=65536\nLimitMEMLOCK=infinity\n");
    const DeployOptions& deploy = plan_.deploy;
    if (ranks != nullptr && ranks->memory_bytes > 0) {
      absl::StrAppend(&text, "MemoryMax=", ranks->memory_bytes, "\n");
    }
    if (ranks != nullptr && deploy.cpus > 0) absl::StrAppend(&text, "CPUQuota=", 100 * deploy.cpus, "%\n");
    absl::StrAppend(&text, "DynamicUser=yes\nUser=", deploy.name, "\n", kSandbox,
                    ranks != nullptr && ranks->gpus > 0
                        ? ""
                        : "PrivateDevices=yes\nSystemCallFilter=@system-service\nSystemCallErrorNumber=EPERM\n",
                    "\n[Install]\nWantedBy=", deploy.name, ".target\n");
    Add(absl::StrCat(deploy.name, "-", name, ".service"), text);
  }

  // Units stop in the reverse of the order in which they start: routers, which finish answers, before the ranks. Ranks
  // wait for them in any case.
  std::vector<std::string> After(const std::string& name) const {
    std::vector<std::string> after = {"network-online.target"};
    if (name.starts_with("router")) after.insert(after.end(), units_.begin(), units_.end());
    return after;
  }

  void AddRouter(int index) {
    const std::string unit = plan_.routers > 1 ? part_.RouterName(index) : "router";
    AddUnit(unit, unit,
            {"router", "--rank=" + part_.RouterName(index), "--http=" + part_.HttpAddress(index).ToString(),
             "--grpc=" + part_.GrpcAddress(index).ToString(), "--metrics=" + part_.MetricsAddress(index).ToString()},
            plan_.router_flags, "", plan_.stop_seconds, nullptr);
    router_units_.push_back(absl::StrCat(plan_.deploy.name, "-", unit, ".service"));
  }

  // Of this machine and of others, as ranks of this one reach them.
  std::vector<HostPort> KnownRouters() const {
    std::vector<HostPort> routers;
    for (int i = 0; i < plan_.routers; ++i) {
      HostPort router = part_.GrpcAddress(i);
      if (IsWildcardHost(router.host)) router.host = part_.part.host.empty() ? "127.0.0.1" : part_.part.host;
      routers.push_back(std::move(router));
    }
    routers.insert(routers.end(), part_.part.routers.begin(), part_.part.routers.end());
    return routers;
  }

  // "%i" is the instance: the rank's number.
  void AddTemplate(const RankGroup& group) {
    std::vector<std::string> command = {group.command, absl::StrCat("--rank=", group.name, "-%i")};
    const std::vector<HostPort> routers = KnownRouters();
    if (!routers.empty()) command.push_back("--router=" + ToString(routers));
    if (!part_.part.host.empty()) command.push_back(absl::StrCat("--grpc=", HostPort{part_.part.host, 0}.ToString()));
    std::vector<std::string> flags = group.flags;
    if (group.gpus > 0) std::erase(flags, "--device=cuda");
    AddUnit(group.name + "@", absl::StrCat(group.name, "-%i"), std::move(command), flags,
            "# Ranks of the manifest have a fixed port, in a drop-in.\nEnvironment=WINNOW_METRICS=127.0.0.1:0\n",
            kUnitStopSeconds, &group);
  }

  void AddRank(const RankGroup& group, int index, int process) {
    const std::string unit = absl::StrCat(plan_.deploy.name, "-", group.name, "@", group.first + index, ".service");
    std::string own =
        absl::StrCat("[Service]\nEnvironment=WINNOW_METRICS=", part_.MetricsAddress(process).ToString(), "\n");
    if (group.gpus > 0) {
      const int first =
          (group.command == "cache-rank" ? part_.cache_device : part_.device).ordinal + index * group.gpus;
      absl::StrAppend(&own, "Environment=WINNOW_DEVICE=cuda:", first);
      for (int i = 1; i < group.gpus; ++i) absl::StrAppend(&own, ",", first + i);
      absl::StrAppend(&own, "\n");
    }
    Add(unit + ".d/rank.conf", own);
    units_.push_back(unit);
  }

  const DeployPlan& plan_;
  const UpOptions& part_;
  const std::string folder_;
  const std::string header_;
  RenderedFiles files_;
  std::vector<std::string> units_;
  std::vector<std::string> router_units_;
};

}  // namespace

absl::StatusOr<RenderedFiles> RenderSystemd(const Manifest& manifest, std::string_view source) {
  WINNOW_RETURN_IF_ERROR(CheckPortsAreKnown(manifest));
  RenderedFiles files;
  std::vector<std::string> nodes = {""};
  if (!manifest.nodes.empty()) nodes.clear();
  for (const ManifestNode& node : manifest.nodes) nodes.push_back(node.name);
  for (const std::string& node : nodes) {
    WINNOW_ASSIGN_OR_RETURN(const UpOptions part, manifest.OptionsOf(node));
    WINNOW_ASSIGN_OR_RETURN(const DeployPlan plan, PlanPart(part, manifest.deploy, ""));
    for (RenderedFile& file : Units(plan, part, node, RenderedHeader("systemd", source)).Take()) {
      files.push_back(std::move(file));
    }
  }
  return files;
}

}  // namespace winnow
