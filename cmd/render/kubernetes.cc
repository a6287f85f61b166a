#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cmd/render/plan.h"
#include "cmd/render/quote.h"

namespace winnow {
namespace {

constexpr int kHttpPort = 8000;
constexpr int kRouterGrpcPort = 8001;
constexpr int kPodGrpcPort = 8002;
constexpr int kMetricsPort = 9100;

// A model of hundreds of gigabytes is read before anything answers.
constexpr int kStartSeconds = 1800;
constexpr int kPodStopSeconds = 30;

// Where a manifest says nothing: endpoints of a service lag behind a pod that ends, and answers are long.
constexpr int kDrainDelaySeconds = 5;
constexpr int kStopGraceSeconds = 60;

// A folder for `kubectl apply -k`: a file for each role, services, network policies and disruption budgets.
class Kubernetes {
 public:
  Kubernetes(const DeployPlan& plan, std::string_view source)
      : plan_(plan), name_(plan.deploy.name), header_(RenderedHeader("kubernetes", source)) {
    Add("namespace.yaml", absl::StrCat("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: ", name_, "\n"));
    AddRouter();
    for (const RankGroup& group : plan_.groups) AddRanks(group);
    Add("network-policy.yaml", NetworkPolicies());
    std::string resources;
    for (const RenderedFile& file : files_) absl::StrAppend(&resources, "  - ", file.path, "\n");
    Add("kustomization.yaml",
        absl::StrCat("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: ", name_,
                     "\nresources:\n", resources));
  }
  RenderedFiles Take() { return std::move(files_); }

 private:
  void Add(const std::string& path, const std::string& text) { files_.push_back({path, header_ + text}); }

  std::string Labels(const std::string& component, int indent) const {
    const std::string pad(static_cast<size_t>(indent), ' ');
    return absl::StrCat(pad, "app.kubernetes.io/name: ", name_, "\n", pad, "app.kubernetes.io/component: ", component,
                        "\n");
  }

  // What a pod has; of routers nothing is said.
  std::string Resources(const RankGroup* group) const {
    if (group == nullptr) return "";
    std::string limits;
    if (plan_.deploy.cpus > 0) absl::StrAppend(&limits, "              cpu: \"", plan_.deploy.cpus, "\"\n");
    if (group->memory_bytes > 0) absl::StrAppend(&limits, "              memory: \"", group->memory_bytes, "\"\n");
    if (group->gpus > 0) absl::StrAppend(&limits, "              nvidia.com/gpu: \"", group->gpus, "\"\n");
    if (limits.empty()) return "";
    return absl::StrCat("          resources:\n            requests:\n", limits, "            limits:\n", limits);
  }

  static std::string Probe(const std::string& kind, const std::string& path, int period_s, int failures) {
    return absl::StrCat("          ", kind, ":\n            httpGet: {path: ", path, ", port: metrics}\n",
                        "            periodSeconds: ", period_s, "\n            timeoutSeconds: 5\n",
                        "            failureThreshold: ", failures, "\n");
  }

  // The pod template, from "spec:" of a workload on.
  std::string Template(const std::string& component, const std::vector<std::string>& arguments,
                       const std::vector<std::pair<std::string, int>>& ports, const RankGroup* group,
                       int stop_seconds) const {
    const bool needs_model = group == nullptr || group->needs_model;
    const std::vector<MountedFolder>& folders = group == nullptr ? plan_.router_folders : group->folders;
    std::string text = absl::StrCat(
        "  selector:\n    matchLabels:\n", Labels(component, 6), "  template:\n    metadata:\n      labels:\n",
        Labels(component, 8), "      annotations:\n        prometheus.io/scrape: \"true\"\n",
        "        prometheus.io/port: \"", kMetricsPort, "\"\n    spec:\n",
        "      terminationGracePeriodSeconds: ", stop_seconds, "\n",
        "      enableServiceLinks: false\n      automountServiceAccountToken: false\n"
        "      securityContext:\n        runAsNonRoot: true\n        runAsUser: 65532\n        runAsGroup: 65532\n"
        "        seccompProfile: {type: RuntimeDefault}\n",
        // Who reads the secrets.
        folders.empty() ? "" : "        fsGroup: 65532\n",
        group == nullptr && plan_.routers > 1 ? Spread(component) : "",
        "      containers:\n        - name: ", component, "\n          image: ", YamlQuoted(plan_.deploy.image),
        "\n          command: [\"/usr/local/bin/winnow\"]\n          args:\n");
    for (const std::string& argument : arguments) {
      // "$(" begins a variable of the container's.
      absl::StrAppend(&text, "            - ", YamlQuoted(absl::StrReplaceAll(argument, {{"$(", "$$("}})), "\n");
    }
    absl::StrAppend(
        &text,
        "          env:\n"
        "            - name: WINNOW_RANK\n              valueFrom: {fieldRef: {fieldPath: metadata.name}}\n"
        "            - name: WINNOW_ADVERTISE\n              valueFrom: {fieldRef: {fieldPath: status.podIP}}\n"
        "          ports:\n");
    for (const auto& [port, number] : ports) {
      absl::StrAppend(&text, "            - {name: ", port, ", containerPort: ", number, "}\n");
    }
    absl::StrAppend(&text, Probe("startupProbe", "/health", 5, kStartSeconds / 5),
                    Probe("readinessProbe", "/ready", 2, 1), Probe("livenessProbe", "/live", 10, 3), Resources(group),
                    "          securityContext:\n            allowPrivilegeEscalation: false\n"
                    "            readOnlyRootFilesystem: true\n            capabilities: {drop: [\"ALL\"]}\n"
                    "          volumeMounts:\n            - {name: tmp, mountPath: /tmp}\n"
                    "            - {name: shm, mountPath: /dev/shm}\n");
    if (needs_model) {
      absl::StrAppend(&text, "            - {name: model, mountPath: ", kModelInContainer, ", readOnly: true}\n");
    }
    for (const MountedFolder& folder : folders) {
      absl::StrAppend(&text, "            - {name: ", VolumeOf(folder), ", mountPath: ", YamlQuoted(folder.path),
                      ", readOnly: true}\n");
    }
    absl::StrAppend(&text,
                    "      volumes:\n        - {name: tmp, emptyDir: {}}\n"
                    "        - {name: shm, emptyDir: {medium: Memory}}\n");
    if (needs_model) {
      absl::StrAppend(&text, "        - name: model\n          hostPath: {path: ", YamlQuoted(plan_.model),
                      ", type: Directory}\n");
    }
    for (const MountedFolder& folder : folders) {
      absl::StrAppend(&text, "        - name: ", VolumeOf(folder), "\n          secret: {secretName: ", name_, "-",
                      folder.secret, ", defaultMode: 0440}\n");
    }
    return text;
  }

  static std::string VolumeOf(const MountedFolder& folder) { return "files-" + folder.secret; }

  // Pods of the component on different machines, where there are so many.
  std::string Spread(const std::string& component) const {
    return absl::StrCat(
        "      topologySpreadConstraints:\n        - maxSkew: 1\n          topologyKey: kubernetes.io/hostname\n"
        "          whenUnsatisfiable: ScheduleAnyway\n          labelSelector:\n            matchLabels:\n",
        Labels(component, 14));
  }

  std::string DisruptionBudget(const std::string& name, const std::string& component) const {
    return absl::StrCat("---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata:\n  name: ", name,
                        "\nspec:\n  maxUnavailable: 1\n  selector:\n    matchLabels:\n", Labels(component, 6));
  }

  std::string Service(const std::string& name, const std::string& component, bool headless,
                      const std::vector<std::pair<std::string, int>>& ports) const {
    std::string text =
        absl::StrCat("apiVersion: v1\nkind: Service\nmetadata:\n  name: ", name, "\n  labels:\n", Labels(component, 4),
                     "spec:\n", headless ? "  clusterIP: None\n  publishNotReadyAddresses: true\n" : "",
                     "  selector:\n", Labels(component, 4), "  ports:\n");
    for (const auto& [port, number] : ports) {
      absl::StrAppend(&text, "    - {name: ", port, ", port: ", number, ", targetPort: ", port, "}\n");
    }
    return text;
  }

  bool HasFlag(std::string_view prefix) const {
    return std::any_of(plan_.router_flags.begin(), plan_.router_flags.end(),
                       [&](const std::string& flag) { return flag.starts_with(prefix); });
  }

  void AddRouter() {
    std::vector<std::string> arguments = {
        "router", absl::StrCat("--http=0.0.0.0:", kHttpPort), absl::StrCat("--grpc=0.0.0.0:", kRouterGrpcPort),
        absl::StrCat("--metrics=0.0.0.0:", kMetricsPort), absl::StrCat("--cluster=", plan_.cluster)};
    arguments.insert(arguments.end(), plan_.router_flags.begin(), plan_.router_flags.end());
    int stop_seconds = plan_.stop_seconds;
    if (!HasFlag("--drain-delay=")) {
      arguments.push_back(absl::StrCat("--drain-delay=", kDrainDelaySeconds, "s"));
      stop_seconds += kDrainDelaySeconds;
    }
    if (!HasFlag("--stop-grace=")) {
      arguments.push_back(absl::StrCat("--stop-grace=", kStopGraceSeconds, "s"));
      stop_seconds += kStopGraceSeconds;
    }
    const std::vector<std::pair<std::string, int>> ports = {
        {"http", kHttpPort}, {"grpc", kRouterGrpcPort}, {"metrics", kMetricsPort}};
    // A new router serves before an old one is told to stop: ranks are registered with all of them.
    const std::string deployment =
        absl::StrCat("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: ", name_, "-router\n  labels:\n",
                     Labels("router", 4), "spec:\n  replicas: ", plan_.routers,
                     "\n  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}\n",
                     Template("router", arguments, ports, nullptr, stop_seconds));
    // Clients find a router when it is ready; ranks must find it before, for it is ready because of them. They look up
    // the addresses of all routers every few seconds.
    Add("router.yaml",
        absl::StrCat(deployment, "---\n",
                     Service(name_, "router", false, {{"http", kHttpPort}, {"grpc", kRouterGrpcPort}}), "---\n",
                     Service(name_ + "-router", "router", true, {{"grpc", kRouterGrpcPort}, {"metrics", kMetricsPort}}),
                     plan_.routers > 1 ? DisruptionBudget(name_ + "-router", "router") : ""));
  }

  void AddRanks(const RankGroup& group) {
    std::vector<std::string> arguments = {group.command, absl::StrCat("--router=", name_, "-router:", kRouterGrpcPort),
                                          absl::StrCat("--grpc=0.0.0.0:", kPodGrpcPort),
                                          absl::StrCat("--metrics=0.0.0.0:", kMetricsPort),
                                          absl::StrCat("--cluster=", plan_.cluster)};
    arguments.insert(arguments.end(), group.flags.begin(), group.flags.end());
    const std::vector<std::pair<std::string, int>> ports = {{"grpc", kPodGrpcPort}, {"metrics", kMetricsPort}};
    std::string text = absl::StrCat("apiVersion: apps/v1\nkind: StatefulSet\nmetadata:\n  name: ", group.name,
                                    "\n  labels:\n", Labels(group.name, 4), "spec:\n  serviceName: ", group.name,
                                    "\n  replicas: ", group.count, "\n  podManagementPolicy: Parallel\n",
                                    Template(group.name, arguments, ports, &group, kPodStopSeconds), "---\n",
                                    Service(group.name, group.name, true, ports));
    if (group.count > 1) absl::StrAppend(&text, DisruptionBudget(group.name, group.name));
    Add(group.name + ".yaml", text);
  }

  // From pods of these components; to all ports, or to one.
  std::string From(const std::vector<std::string>& components, const std::string& port) const {
    if (components.empty()) return "";
    return absl::StrCat(
        "    - from:\n        - podSelector:\n            matchLabels: {app.kubernetes.io/name: ", name_,
        "}\n            matchExpressions:\n              - {key: app.kubernetes.io/component, operator: "
        "In, values: [",
        absl::StrJoin(components, ", "), "]}\n",
        port.empty() ? "" : absl::StrCat("      ports:\n        - {port: ", port, "}\n"));
  }

  // Without TLS whoever reaches the gRPC port of a router can register as a rank and get prompts: clients that may use
  // it say so by a label, in whichever namespace they are.
  std::string FromClients() const {
    return absl::StrCat(
        "    - from:\n        - namespaceSelector: {}\n          podSelector:\n            matchLabels: {", name_,
        "-client: \"true\"}\n      ports:\n        - {port: grpc}\n");
  }

  std::string NetworkPolicy(const std::string& component, const std::string& from) const {
    return absl::StrCat("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: ", name_, "-",
                        component, "\nspec:\n  podSelector:\n    matchLabels:\n", Labels(component, 6),
                        "  policyTypes: [Ingress]\n  ingress:\n", from);
  }

  // The arrows of the architecture: clients to routers by HTTP and gRPC, ranks to routers and routers to ranks by gRPC,
  // inference ranks and cache ranks to each other (KV takes ports of UCX's choice), cache ranks to each other by gRPC
  // where they keep replicas, all of them to the registry, where its pods are labelled as such, and anybody to metrics.
  std::string NetworkPolicies() const {
    std::vector<std::string> ranks, inference, cache;
    for (const RankGroup& group : plan_.groups) {
      ranks.push_back(group.name);
      (group.command == "cache-rank" ? cache : inference).push_back(group.name);
    }
    constexpr char kMetrics[] = "    - ports:\n        - {port: metrics}\n";
    std::string text = NetworkPolicy(
        "router", absl::StrCat("    - ports:\n        - {port: http}\n", FromClients(), From(ranks, "grpc"), kMetrics));
    for (const RankGroup& group : plan_.groups) {
      const bool is_cache = group.command == "cache-rank";
      absl::StrAppend(
          &text, "---\n",
          NetworkPolicy(group.name, absl::StrCat(From({"router"}, "grpc"), From(is_cache ? inference : cache, ""),
                                                 is_cache && plan_.has_replicas ? From(cache, "grpc") : "", kMetrics)));
    }
    if (plan_.has_registry) {
      std::vector<std::string> all = ranks;
      all.insert(all.end(), {"router", "registry"});
      absl::StrAppend(&text, "---\n", NetworkPolicy("registry", From(all, "")));
    }
    return text;
  }

  const DeployPlan& plan_;
  const std::string name_;
  const std::string header_;
  RenderedFiles files_;
};

}  // namespace

absl::StatusOr<RenderedFiles> RenderKubernetes(const Manifest& manifest, std::string_view source) {
  WINNOW_RETURN_IF_ERROR(CheckMayBeReached(manifest));
  WINNOW_RETURN_IF_ERROR(CheckRegistryIsReached(manifest));
  WINNOW_ASSIGN_OR_RETURN(const DeployPlan plan, PlanCluster(manifest, kModelInContainer));
  return Kubernetes(plan, source).Take();
}

}  // namespace winnow
