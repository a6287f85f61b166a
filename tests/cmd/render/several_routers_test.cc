// What is rendered of a manifest with several routers: ranks know all of them, and clients reach each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cmd/render/plan.h"
#include "yaml-cpp/yaml.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kThreeRouters[] =
    "model: {path: /m}\n"
    "registry: etcd://127.0.0.1:2379\n"
    "router: {count: 3}\n"
    "inference: {ranks: 2}\n"
    "security: {insecure: true}\n"
    "deploy: {registry: 'etcd://etcd-0:2379,etcd-1:2379/mine'}\n";

constexpr char kRoutersOnTwoNodes[] =
    "model: {path: /m}\n"
    "router: {http: '0.0.0.0:8000'}\n"
    "security: {insecure: true}\n"
    "nodes:\n"
    "  a: {address: 10.0.0.1, router: true}\n"
    "  b: {address: 10.0.0.2, router: true, cache_ranks: 1}\n"
    "  c: {address: 10.0.0.3, inference_ranks: 1, device: cpu}\n";

using Renderer = absl::StatusOr<RenderedFiles> (*)(const Manifest&, std::string_view);

Manifest Parsed(const std::string& text) {
  ParsedManifest parsed = ParseManifest(text);
  for (const ManifestError& error : parsed.errors) ADD_FAILURE() << error.ToString("test.yaml");
  return std::move(parsed.manifest);
}

std::map<std::string, std::string> Rendered(Renderer render, const std::string& text) {
  const absl::StatusOr<RenderedFiles> files = render(Parsed(text), "test.yaml");
  EXPECT_TRUE(files.ok()) << files.status();
  std::map<std::string, std::string> texts;
  for (const RenderedFile& file : *files) texts[file.path] = file.text;
  return texts;
}

YAML::Node ObjectOf(const std::string& text, const std::string& kind, const std::string& name) {
  for (const YAML::Node& object : YAML::LoadAll(text)) {
    if (object["kind"].as<std::string>() == kind && object["metadata"]["name"].as<std::string>() == name) return object;
  }
  ADD_FAILURE() << "no " << kind << " " << name << " in\n" << text;
  return {};
}

std::vector<std::string> ArgumentsOf(const YAML::Node& workload) {
  return workload["spec"]["template"]["spec"]["containers"][0]["args"].as<std::vector<std::string>>();
}

TEST(SeveralRouters, KubernetesRunsReplicasBehindAServiceWhoseNameRanksLookUp) {
  const auto files = Rendered(RenderKubernetes, kThreeRouters);
  const YAML::Node router = ObjectOf(files.at("router.yaml"), "Deployment", "winnow-router");
  EXPECT_EQ(router["spec"]["replicas"].as<int>(), 3);
  EXPECT_EQ(router["spec"]["strategy"]["type"].as<std::string>(), "RollingUpdate");
  EXPECT_THAT(ArgumentsOf(router), Contains("--registry=etcd://etcd-0:2379,etcd-1:2379/mine"));
  EXPECT_EQ(router["spec"]["template"]["spec"]["topologySpreadConstraints"][0]["topologyKey"].as<std::string>(),
            "kubernetes.io/hostname");
  // What ranks look up has all addresses, also of routers that are not ready yet; what clients use, those that are.
  const YAML::Node of_ranks = ObjectOf(files.at("router.yaml"), "Service", "winnow-router");
  EXPECT_EQ(of_ranks["spec"]["clusterIP"].as<std::string>(), "None");
  EXPECT_TRUE(of_ranks["spec"]["publishNotReadyAddresses"].as<bool>());
  EXPECT_FALSE(ObjectOf(files.at("router.yaml"), "Service", "winnow")["spec"]["clusterIP"]);
  EXPECT_EQ(
      ObjectOf(files.at("router.yaml"), "PodDisruptionBudget", "winnow-router")["spec"]["maxUnavailable"].as<int>(), 1);
  for (const auto& [file, rank] : {std::pair("inference.yaml", "inference"), std::pair("cache.yaml", "cache")}) {
    EXPECT_THAT(
        ArgumentsOf(ObjectOf(files.at(file), "StatefulSet", rank)),
        AllOf(Contains("--router=winnow-router:8001"), Contains("--registry=etcd://etcd-0:2379,etcd-1:2379/mine")));
  }
}

TEST(SeveralRouters, OneRouterHasNoBudgetThatWouldKeepItsNodeFromBeingDrained) {
  const auto files = Rendered(RenderKubernetes, "model: {path: /m}\nsecurity: {insecure: true}\n");
  EXPECT_THAT(files.at("router.yaml"), AllOf(HasSubstr("replicas: 1\n"), Not(HasSubstr("PodDisruptionBudget"))));
}

TEST(SeveralRouters, ComposeRunsEachAsAServiceWithPortsOfItsOwn) {
  const YAML::Node services = YAML::Load(Rendered(RenderCompose, kThreeRouters).at("compose.yaml"))["services"];
  std::set<std::string> names;
  for (const auto& service : services) names.insert(service.first.as<std::string>());
  EXPECT_EQ(names,
            (std::set<std::string>{"router-0", "router-1", "router-2", "inference-0", "inference-1", "cache-0"}));
  EXPECT_THAT(services["router-2"]["ports"].as<std::vector<std::string>>(),
              ElementsAre("127.0.0.1:8020:8000", "127.0.0.1:8021:8001"));
  EXPECT_THAT(services["router-2"]["command"].as<std::vector<std::string>>(), Contains("--rank=router-2"));
  for (const char* rank : {"inference-1", "cache-0"}) {
    EXPECT_THAT(services[rank]["command"].as<std::vector<std::string>>(),
                Contains("--router=router-0:8001,router-1:8001,router-2:8001"));
  }
}

TEST(SeveralRouters, SystemdHasAUnitOfEachThatStopsBeforeTheRanks) {
  const auto files = Rendered(RenderSystemd, kThreeRouters);
  for (int i = 0; i < 3; ++i) {
    const std::string& unit = files.at(absl::StrCat("winnow-router-", i, ".service"));
    EXPECT_THAT(unit, AllOf(HasSubstr(absl::StrCat("--rank=router-", i)),
                            HasSubstr(absl::StrCat("--http=127.0.0.1:80", i, "0")),
                            HasSubstr(absl::StrCat("--grpc=127.0.0.1:80", i, "1")),
                            HasSubstr(absl::StrCat("--metrics=127.0.0.1:910", i))));
    EXPECT_THAT(unit, HasSubstr("After=network-online.target winnow-inference@0.service winnow-inference@1.service "
                                "winnow-cache@0.service\n"));
  }
  EXPECT_THAT(files.at("winnow-inference@.service"),
              HasSubstr("--router=127.0.0.1:8001,127.0.0.1:8011,127.0.0.1:8021"));
  EXPECT_THAT(files.at("winnow-inference@0.service.d/rank.conf"), HasSubstr("WINNOW_METRICS=127.0.0.1:9103"));
  EXPECT_THAT(files.at("winnow-router-0.service"), HasSubstr("--registry=etcd://127.0.0.1:2379/winnow"))
      << "units run where the manifest does";
  EXPECT_THAT(files.at("winnow.target"), HasSubstr("winnow-router-0.service winnow-router-1.service"));
}

TEST(SeveralRouters, SystemdTellsRanksTheRoutersOfAllNodes) {
  const auto files = Rendered(RenderSystemd, kRoutersOnTwoNodes);
  EXPECT_THAT(files.at("a/winnow-router.service"), HasSubstr("--rank=router-0"));
  EXPECT_THAT(files.at("b/winnow-router.service"), HasSubstr("--rank=router-1"));
  EXPECT_THAT(files.at("b/winnow-cache@.service"), HasSubstr("--router=10.0.0.2:8001,10.0.0.1:8001"));
  EXPECT_THAT(files.at("c/winnow-inference@.service"), HasSubstr("--router=10.0.0.1:8001,10.0.0.2:8001"));
}

TEST(SeveralRouters, SlurmGivesThemNodesOfTheirOwnAndRanksTheAddresses) {
  const std::string script = Rendered(RenderSlurm, kThreeRouters).at("winnow.sbatch");
  EXPECT_THAT(script, HasSubstr("#SBATCH --nodes=3 --ntasks=3 --ntasks-per-node=1\n"));
  EXPECT_THAT(script, HasSubstr("printf -v routers '%s:8001,' \"${addresses[@]}\"\n"));
  EXPECT_THAT(script, HasSubstr("--rank=router-$SLURM_PROCID"));
  EXPECT_THAT(script, HasSubstr("cache-rank --router=\"${routers%,}\""));
}

TEST(SeveralRouters, NodesPutTogetherForContainersHaveAllTheirRouters) {
  const auto files = Rendered(RenderKubernetes, kRoutersOnTwoNodes);
  EXPECT_EQ(ObjectOf(files.at("router.yaml"), "Deployment", "winnow-router")["spec"]["replicas"].as<int>(), 2);
}

TEST(SeveralRouters, PortsThatRanksCouldNotBeToldAreRefused) {
  const Manifest manifest = Parsed("model: {path: /m}\nrouter: {grpc: '127.0.0.1:0'}\nsecurity: {insecure: true}\n");
  for (const Renderer render : {RenderSystemd, RenderSlurm}) {
    EXPECT_EQ(render(manifest, "test.yaml").status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(RenderKubernetes(manifest, "test.yaml").ok()) << "ports of pods are the same everywhere";
}

TEST(SeveralRouters, ARegistryOnLoopbackIsRefusedWhereItWouldBeAnotherOne) {
  Manifest manifest = Parsed(kThreeRouters);
  manifest.deploy.registry = std::nullopt;
  for (const Renderer render : {RenderKubernetes, RenderCompose, RenderSlurm}) {
    const absl::Status refused = render(manifest, "test.yaml").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("etcd://127.0.0.1:2379"), HasSubstr("deploy.registry")));
  }
  EXPECT_TRUE(RenderSystemd(manifest, "test.yaml").ok()) << "units of one machine";
}

}  // namespace
}  // namespace winnow
