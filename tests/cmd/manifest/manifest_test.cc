#include "cmd/manifest/manifest.h"

#include <set>

#include "absl/strings/str_replace.h"
#include "cmd/manifest/manifest_fields.h"
#include "cmd/manifest/schema.h"
#include "common/config/host_address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> ErrorsOf(const std::string& yaml) {
  std::vector<std::string> lines;
  for (const ManifestError& error : ParseManifest(yaml).errors) lines.push_back(error.ToString("m.yaml"));
  return lines;
}

// Of `up`, what says which manifest to read has no place in one.
TEST(ManifestFields, EveryOptionOfUpHasOnePlace) {
  UpOptions options;
  const Fields fields = Fields::Of(options);
  std::set<std::string> placed = {"file", "node"}, paths;
  for (const ManifestField& field : ManifestFields()) {
    EXPECT_NE(fields.Find(field.option), nullptr) << field.option;
    EXPECT_TRUE(placed.insert(std::string(field.option)).second) << field.option << " has two places";
    EXPECT_TRUE(paths.insert(std::string(field.path)).second) << field.path << " stands for two options";
  }
  for (const Field& field : fields.all()) EXPECT_TRUE(placed.contains(field.name)) << field.name << " has no place";
}

TEST(Manifest, ReadsSectionsIntoTheOptionsOfUp) {
  const ParsedManifest parsed = ParseManifest(R"(
transport: ucx
model: {path: some/model, id: "a,b", max-context: 4096}
router:
  http: 0.0.0.0:80
  stop_grace: 5s
inference: {prefill_ranks: 1, decode_ranks: 2, device: cpu}
cache: {ranks: 2, memory: 3GiB, prefix_cache: no}
selection: {default: "quest,budget=512"}
observability: {log_level: debug}
security: {insecure: true}
deploy: {name: chat, cpus: 4}
)");
  ASSERT_THAT(parsed.errors, IsEmpty()) << parsed.errors.front().ToString("");
  const UpOptions& options = parsed.manifest.options;
  EXPECT_EQ(options.transport, TransportKind::kUcx);
  EXPECT_EQ(options.model, "some/model");
  EXPECT_EQ(options.model_id, "a,b");
  EXPECT_EQ(options.max_context, 4096u);
  EXPECT_EQ(options.http.ToString(), "0.0.0.0:80");
  EXPECT_EQ(options.stop_grace, std::chrono::seconds(5));
  EXPECT_EQ(options.num_inference_ranks(), 3);
  EXPECT_EQ(options.cache_ranks, 2);
  EXPECT_EQ(options.cache_memory_bytes, int64_t{3} << 30);
  EXPECT_FALSE(options.prefix_cache);
  EXPECT_EQ(options.selection.specification, "quest,budget=512");
  EXPECT_EQ(options.log.level, "debug");
  EXPECT_EQ(parsed.manifest.deploy.name, "chat");
  EXPECT_EQ(parsed.manifest.deploy.cpus, 4);
}

TEST(Manifest, NamesLineAndFieldOfEveryError) {
  EXPECT_THAT(ErrorsOf("model: {path: m}\n"
                       "inferense: {ranks: 1}\n"
                       "inference:\n"
                       "  ranks: 65\n"
                       "  devise: cpu\n"
                       "  max_running: many\n"
                       "cache: 2\n"
                       "selection: {budget: [1]}\n"
                       "cache: {ranks: 1}\n"),
              ElementsAre("m.yaml:2: inferense: unknown field; did you mean \"inference\"?",
                          "m.yaml:4: inference.ranks: \"65\" is outside [1, 64]",
                          "m.yaml:5: inference.devise: unknown field; did you mean \"inference.device\"?",
                          "m.yaml:6: inference.max_running: expected a whole number, got \"many\"",
                          "m.yaml:7: cache: expected a map of fields, got one value",
                          "m.yaml:8: selection.budget: expected one value, got a list",
                          "m.yaml:9: cache: it was given before, in line 7"));
}

TEST(Manifest, SaysWhereFieldsContradictEachOther) {
  EXPECT_THAT(ErrorsOf("model: {path: m}\ninference:\n  prefill_ranks: 2\n"),
              ElementsAre("m.yaml:3: inference.prefill_ranks: inference.prefill_ranks and inference.decode_ranks need "
                          "each other"));
  EXPECT_THAT(ErrorsOf("model: {path: m}\n\nrouter: {cache_shards: 3}\n"),
              ElementsAre(AllOf(HasSubstr("m.yaml:3: router.cache_shards: "), HasSubstr("cache.ranks is 1"))));
  EXPECT_THAT(ErrorsOf("inference: {ranks: 1}\n"), ElementsAre("m.yaml: model.path: it is required"));
}

TEST(Manifest, IsNotYaml) {
  EXPECT_THAT(ErrorsOf("model: [\n"), ElementsAre(HasSubstr("not YAML")));
  EXPECT_THAT(ErrorsOf("- a\n"), ElementsAre("m.yaml: expected a map of sections"));
}

constexpr char kNodes[] = R"(
model: {path: m}
router: {grpc: "127.0.0.1:7001"}
security: {tls_cert: "{role}.crt", tls_key: "{role}.key", tls_ca: ca.crt}
nodes:
  a: {address: 10.0.0.1, router: true, cache_ranks: 1}
  b: {address: 10.0.0.2, inference_ranks: 2, device: "cuda:0,1"}
  c: {address: 10.0.0.3, inference_ranks: 1, cache_ranks: 2, device: cpu}
)";

TEST(Manifest, ANodeStartsItsPartAndNumbersItsRanksBehindThoseBefore) {
  const ParsedManifest parsed = ParseManifest(kNodes);
  ASSERT_THAT(parsed.errors, IsEmpty()) << parsed.errors.front().ToString("");
  const absl::StatusOr<UpOptions> a = parsed.manifest.OptionsOf("a"), c = parsed.manifest.OptionsOf("c");
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(a->part.has_router);
  EXPECT_EQ(a->grpc.ToString(), "10.0.0.1:7001");
  EXPECT_EQ(a->num_inference_ranks(), 0);
  EXPECT_EQ(a->CacheRankName(0), "cache-0");
  EXPECT_FALSE(c->part.has_router);
  EXPECT_EQ(ToString(c->part.routers), "10.0.0.1:7001");
  EXPECT_EQ(c->InferenceRankName(0), "inference-2");
  EXPECT_EQ(c->CacheRankName(1), "cache-2");
  const InferenceProcessOptions rank = c->InferenceRank(0, c->part.routers);
  EXPECT_EQ(rank.process.grpc.ToString(), "10.0.0.3:0");
  EXPECT_EQ(rank.process.metrics.ToString(), "10.0.0.3:9101");
  EXPECT_EQ(parsed.manifest.OptionsOf("b")->InferenceRank(1, {}).device.ordinal, 1);
}

constexpr char kTwoRouters[] = R"(
model: {path: m}
router: {http: "0.0.0.0:8000"}
security: {insecure: true}
nodes:
  a: {address: 10.0.0.1, router: true, cache_ranks: 1}
  b: {address: 10.0.0.2, inference_ranks: 1}
  c: {address: 10.0.0.3, router: true}
)";

TEST(Manifest, SeveralNodesMayHaveARouterAndEachKnowsThoseOfTheOthers) {
  const ParsedManifest parsed = ParseManifest(kTwoRouters);
  ASSERT_THAT(parsed.errors, IsEmpty()) << parsed.errors.front().ToString("");
  const UpOptions a = *parsed.manifest.OptionsOf("a"), b = *parsed.manifest.OptionsOf("b"),
                  c = *parsed.manifest.OptionsOf("c");
  EXPECT_EQ(ToString(a.part.routers), "10.0.0.3:8001");
  EXPECT_EQ(ToString(b.part.routers), "10.0.0.1:8001,10.0.0.3:8001");
  EXPECT_EQ(a.Router().process.rank, "router-0");
  EXPECT_EQ(c.Router().process.rank, "router-1");
  EXPECT_EQ(c.Router().process.grpc.ToString(), "10.0.0.3:8001");
}

TEST(Manifest, RoutersOfSeveralNodesCannotListenOnTheAddressOfOne) {
  const std::string text = absl::StrReplaceAll(kTwoRouters, {{"0.0.0.0:8000", "10.0.0.1:8000"}});
  EXPECT_THAT(ErrorsOf(text), ElementsAre("m.yaml:3: router.http: several nodes have a router, and 10.0.0.1 is the "
                                          "address of one machine: expected 0.0.0.0:8000"));
}

TEST(Manifest, RanksOfOtherNodesMustKnowWhereARouterIs) {
  const std::string text =
      absl::StrReplaceAll(kTwoRouters, {{"router: {http: \"0.0.0.0:8000\"}", "router: {grpc: \"127.0.0.1:0\"}"}});
  EXPECT_THAT(ErrorsOf(text), ElementsAre("m.yaml:3: router.grpc: ranks of other nodes must know the port, or find "
                                          "routers in a registry"));
  EXPECT_THAT(ErrorsOf("registry: etcd://10.0.0.9:2379" + text), IsEmpty());
}

TEST(Manifest, WithNodesARouterCountIsTheirs) {
  const std::string text =
      absl::StrReplaceAll(kTwoRouters, {{"router: {http: \"0.0.0.0:8000\"}", "router: {count: 2}"}});
  EXPECT_THAT(ErrorsOf(text), ElementsAre("m.yaml:3: router.count: with nodes, each node says its own"));
}

TEST(Manifest, WhatOthersReachNeedsTlsOrAWord) {
  EXPECT_THAT(
      ErrorsOf("model: {path: m}\nrouter:\n  http: 0.0.0.0:80\n"),
      ElementsAre("m.yaml:3: router.http: router.http=0.0.0.0:80 is reached from other machines, and without TLS: "
                  "set security.http_tls_cert, or security.insecure where the network is private"));
  EXPECT_THAT(ErrorsOf("model: {path: m}\nrouter: {http: \"0.0.0.0:80\"}\nsecurity: {insecure: true}\n"), IsEmpty());
  EXPECT_THAT(ErrorsOf("model: {path: m}\nsecurity: {tls_cert: c}\n"), ElementsAre(HasSubstr("need each other")));
  EXPECT_THAT(ErrorsOf("model: {path: m}\nsecurity: {data_plane: encrypted}\n"),
              ElementsAre(HasSubstr("security.data_plane=encrypted needs security.tls_cert")));
  EXPECT_THAT(ErrorsOf("model: {path: m}\nnodes:\n  a: {address: 10.0.0.1, router: true, inference_ranks: 1, "
                       "cache_ranks: 1}\n"),
              ElementsAre(HasSubstr("reached from other machines")));
}

TEST(Manifest, ANodeMustBeNamedWhereThereAreSeveral) {
  const ParsedManifest parsed = ParseManifest(kNodes);
  EXPECT_THAT(std::string(parsed.manifest.OptionsOf("").status().message()), HasSubstr("(a, b, c)"));
  EXPECT_THAT(std::string(parsed.manifest.OptionsOf("d").status().message()), HasSubstr("no node d"));
  EXPECT_THAT(std::string(ParseManifest("model: {path: m}").manifest.OptionsOf("a").status().message()),
              HasSubstr("has no nodes"));
}

TEST(Manifest, NodesNeedARouterAndRanksOfEachKind) {
  EXPECT_THAT(ErrorsOf("model: {path: m}\n"
                       "inference: {ranks: 2}\n"
                       "nodes:\n"
                       "  a: {inference_ranks: 1}\n"),
              ElementsAre("m.yaml:2: inference.ranks: with nodes, each node says its own",
                          "m.yaml:3: nodes: no node has a router (router: true)",
                          "m.yaml:3: nodes: no node has cache ranks", "m.yaml:4: nodes.a.address: it is required"));
}

TEST(ManifestSchema, HasEveryField) {
  const std::string schema = ManifestSchema(), table = ManifestFieldTable();
  for (const ManifestField& field : ManifestFields()) {
    const std::string path(field.path);
    EXPECT_THAT(schema, HasSubstr("\"" + path.substr(path.find('.') + 1) + "\": {"));
    EXPECT_THAT(table, HasSubstr("| `" + path + "`"));
  }
}

}  // namespace
}  // namespace winnow
