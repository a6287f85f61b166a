#include <set>

#include "absl/strings/str_replace.h"
#include "cmd/render/plan.h"
#include "gtest/gtest.h"
#include "yaml-cpp/yaml.h"

namespace winnow {
namespace {

std::vector<YAML::Node> Rendered(const std::string& text) {
  const ParsedManifest parsed = ParseManifest(text);
  EXPECT_TRUE(parsed.errors.empty());
  const auto files = RenderKubernetes(parsed.manifest, "test.yaml");
  EXPECT_TRUE(files.ok()) << files.status();
  std::vector<YAML::Node> objects;
  for (const RenderedFile& file : *files) {
    for (const YAML::Node& object : YAML::LoadAll(file.text)) objects.push_back(object);
  }
  return objects;
}

constexpr char kPrefillAndDecode[] =
    "model: {path: /m}\ninference: {prefill_ranks: 1, decode_ranks: 2}\ncache: {ranks: 2}\nsecurity: {insecure: "
    "true}\n";

// "from > to : port"; no port is all ports, "*" is anybody.
std::set<std::string> Arrows(const std::vector<YAML::Node>& objects) {
  std::set<std::string> arrows;
  for (const YAML::Node& object : objects) {
    if (object["kind"].as<std::string>() != "NetworkPolicy") continue;
    const YAML::Node spec = object["spec"];
    const auto to = spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"].as<std::string>();
    for (const YAML::Node& rule : spec["ingress"]) {
      const std::string port = rule["ports"] ? rule["ports"][0]["port"].as<std::string>() : "";
      if (!rule["from"]) arrows.insert(absl::StrCat("* > ", to, " : ", port));
      for (const YAML::Node& from : rule["from"]) {
        if (from["namespaceSelector"]) {
          const YAML::Node labels = from["podSelector"]["matchLabels"];
          arrows.insert(absl::StrCat("any pod with ", labels.begin()->first.as<std::string>(), " > ", to, " : ", port));
          continue;
        }
        for (const YAML::Node& component : from["podSelector"]["matchExpressions"][0]["values"]) {
          arrows.insert(absl::StrCat(component.as<std::string>(), " > ", to, " : ", port));
        }
      }
    }
  }
  return arrows;
}

TEST(Kubernetes, NetworkPoliciesAllowTheArrowsOfTheArchitectureAlone) {
  EXPECT_EQ(
      Arrows(Rendered(kPrefillAndDecode)),
      (std::set<std::string>{"* > router : http", "any pod with winnow-client > router : grpc", "* > router : metrics",
                             "* > prefill : metrics", "* > decode : metrics", "* > cache : metrics",
                             "prefill > router : grpc", "decode > router : grpc", "cache > router : grpc",
                             "router > prefill : grpc", "router > decode : grpc", "router > cache : grpc",
                             "prefill > cache : ", "decode > cache : ", "cache > prefill : ", "cache > decode : "}));
}

TEST(Kubernetes, CacheRanksThatKeepReplicasReachEachOther) {
  const std::string with_replicas =
      absl::StrReplaceAll(kPrefillAndDecode, {{"ranks: 2}\nsec", "ranks: 2, replicas: 2}\nsec"}});
  const std::set<std::string> arrows = Arrows(Rendered(with_replicas));
  EXPECT_TRUE(arrows.contains("cache > cache : grpc"));
  EXPECT_EQ(arrows.size(), Arrows(Rendered(kPrefillAndDecode)).size() + 1);
}

TEST(Kubernetes, RoutersAndRanksAloneReachThePodsOfARegistry) {
  const std::set<std::string> arrows =
      Arrows(Rendered(absl::StrCat("registry: etcd://etcd:2379\n", kPrefillAndDecode)));
  std::set<std::string> to_registry;
  for (const std::string& arrow : arrows) {
    if (arrow.find("> registry") != std::string::npos) to_registry.insert(arrow);
  }
  EXPECT_EQ(to_registry, (std::set<std::string>{"router > registry : ", "prefill > registry : ", "decode > registry : ",
                                                "cache > registry : ", "registry > registry : "}));
}

// Seconds that the router's pod has to end, and its arguments.
std::pair<int, std::set<std::string>> RouterOf(const std::string& text) {
  for (const YAML::Node& object : Rendered(text)) {
    if (object["kind"].as<std::string>() != "Deployment") continue;
    const YAML::Node spec = object["spec"]["template"]["spec"];
    const auto arguments = spec["containers"][0]["args"].as<std::vector<std::string>>();
    return {spec["terminationGracePeriodSeconds"].as<int>(), {arguments.begin(), arguments.end()}};
  }
  return {};
}

TEST(Kubernetes, ARouterMayEndAnswersBeforeItIsKilled) {
  const auto [seconds, arguments] = RouterOf(kPrefillAndDecode);
  EXPECT_TRUE(arguments.contains("--drain-delay=5s"));
  EXPECT_TRUE(arguments.contains("--stop-grace=60s"));
  EXPECT_GT(seconds, 5 + 60);
}

TEST(Kubernetes, AManifestSaysHowLongARouterDrains) {
  const auto [seconds, arguments] =
      RouterOf(absl::StrCat(kPrefillAndDecode, "router: {drain_delay: 20s, stop_grace: 300s}\n"));
  EXPECT_TRUE(arguments.contains("--drain-delay=20s"));
  EXPECT_GT(seconds, 20 + 300);
  EXPECT_LT(seconds, 20 + 300 + 60);
}

TEST(Kubernetes, RanksOfOneKindAreNotDisruptedTogether) {
  std::set<std::string> budgets;
  for (const YAML::Node& object : Rendered(kPrefillAndDecode)) {
    if (object["kind"].as<std::string>() != "PodDisruptionBudget") continue;
    EXPECT_EQ(object["spec"]["maxUnavailable"].as<int>(), 1);
    budgets.insert(object["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"].as<std::string>());
  }
  EXPECT_EQ(budgets, (std::set<std::string>{"decode", "cache"}));
}

}  // namespace
}  // namespace winnow
