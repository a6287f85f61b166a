// Containers get the folders of the files that their options name, and of no others.
#include "cmd/render/mounted_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cmd/render/plan.h"
#include "yaml-cpp/yaml.h"

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Renderer = absl::StatusOr<RenderedFiles> (*)(const Manifest&, std::string_view);

constexpr char kCluster[] = "model: {path: /m}\ncache: {ranks: 1}\ninference: {ranks: 1}\n";
constexpr char kWithTls[] =
    "security:\n"
    "  tls_cert: /etc/winnow/{role}/tls.crt\n"
    "  tls_key: /etc/winnow/{role}/tls.key\n"
    "  tls_ca: /etc/winnow/{role}/ca.crt\n"
    "  http_tls_cert: /etc/winnow/public/tls.crt\n"
    "  http_tls_key: /etc/winnow/public/tls.key\n";

absl::StatusOr<RenderedFiles> Rendered(Renderer renderer, const std::string& router, const std::string& security) {
  const ParsedManifest parsed = ParseManifest(kCluster + router + security);
  for (const ManifestError& error : parsed.errors) ADD_FAILURE() << error.ToString("test.yaml");
  return renderer(parsed.manifest, "test.yaml");
}

// Of each container: where it mounts what.
using Mounts = std::map<std::string, std::vector<std::string>>;

Mounts OfKubernetes(const RenderedFiles& files) {
  Mounts mounts;
  for (const RenderedFile& file : files) {
    for (const YAML::Node& object : YAML::LoadAll(file.text)) {
      const auto kind = object["kind"].as<std::string>();
      if (kind != "Deployment" && kind != "StatefulSet") continue;
      const YAML::Node pod = object["spec"]["template"]["spec"];
      const YAML::Node container = pod["containers"][0];
      std::vector<std::string>& secrets = mounts[container["name"].as<std::string>()];
      for (const YAML::Node& volume : pod["volumes"]) {
        if (!volume["secret"]) continue;
        for (const YAML::Node& mount : container["volumeMounts"]) {
          if (mount["name"].as<std::string>() != volume["name"].as<std::string>()) continue;
          EXPECT_TRUE(mount["readOnly"].as<bool>());
          secrets.push_back(volume["secret"]["secretName"].as<std::string>() + " at " +
                            mount["mountPath"].as<std::string>());
        }
      }
      EXPECT_EQ(pod["securityContext"]["fsGroup"].IsDefined(), !secrets.empty());
    }
  }
  return mounts;
}

Mounts OfCompose(const RenderedFiles& files) {
  Mounts mounts;
  const YAML::Node compose = YAML::Load(files.at(0).text);
  for (const auto& service : compose["services"]) {
    std::vector<std::string>& folders = mounts[service.first.as<std::string>()];
    for (const YAML::Node& volume : service.second["volumes"]) {
      if (volume.as<std::string>() != "/m:/model:ro") folders.push_back(volume.as<std::string>());
    }
  }
  return mounts;
}

TEST(MountedFolders, EachRoleHasItsCertificateAndRoutersWhatClientsSee) {
  const auto kubernetes = Rendered(RenderKubernetes, "router: {api_keys: /srv/keys/keys.yaml}\n", kWithTls);
  ASSERT_TRUE(kubernetes.ok()) << kubernetes.status();
  Mounts mounts = OfKubernetes(*kubernetes);
  EXPECT_THAT(mounts["router"], ElementsAre("winnow-router at /etc/winnow/router", "winnow-http at /etc/winnow/public",
                                            "winnow-api-keys at /srv/keys"));
  EXPECT_THAT(mounts["inference"], ElementsAre("winnow-inference-rank at /etc/winnow/inference-rank"));
  EXPECT_THAT(mounts["cache"], ElementsAre("winnow-cache-rank at /etc/winnow/cache-rank"));

  const auto compose = Rendered(RenderCompose, "router: {api_keys: /srv/keys/keys.yaml}\n", kWithTls);
  ASSERT_TRUE(compose.ok()) << compose.status();
  mounts = OfCompose(*compose);
  EXPECT_THAT(mounts["router"], ElementsAre("/etc/winnow/router:/etc/winnow/router:ro",
                                            "/etc/winnow/public:/etc/winnow/public:ro", "/srv/keys:/srv/keys:ro"));
  EXPECT_THAT(mounts["inference-0"], ElementsAre("/etc/winnow/inference-rank:/etc/winnow/inference-rank:ro"));
  EXPECT_THAT(mounts["cache-0"], ElementsAre("/etc/winnow/cache-rank:/etc/winnow/cache-rank:ro"));
}

TEST(MountedFolders, OptionsNameTheFilesWhereTheyAreMounted) {
  const auto compose = Rendered(RenderCompose, "", kWithTls);
  ASSERT_TRUE(compose.ok()) << compose.status();
  EXPECT_THAT(compose->at(0).text, HasSubstr("\"--tls-key=/etc/winnow/{role}/tls.key\""));
}

TEST(MountedFolders, NothingIsMountedWhereNothingIsNamed) {
  const auto kubernetes = Rendered(RenderKubernetes, "", "security: {insecure: true}\n");
  ASSERT_TRUE(kubernetes.ok()) << kubernetes.status();
  for (const auto& [name, secrets] : OfKubernetes(*kubernetes)) EXPECT_THAT(secrets, IsEmpty()) << name;
}

TEST(MountedFolders, FilesOfOneFolderAreOneMount) {
  const auto folders =
      MountedFolders({{"tls-cert", "/a/{role}/crt"}, {"tls-key", "/a/{role}/key"}, {"tls-ca", "/a/all/ca"}}, "router");
  ASSERT_TRUE(folders.ok()) << folders.status();
  ASSERT_EQ(folders->size(), 2u);
  EXPECT_EQ((*folders)[0].path, "/a/router");
  EXPECT_EQ((*folders)[0].secret, "router");
  EXPECT_EQ((*folders)[1].path, "/a/all");
  EXPECT_EQ((*folders)[1].secret, "authority");
}

TEST(MountedFolders, RefusesPathsThatContainersCannotHave) {
  const struct {
    NeededFile file;
    const char* error;
  } kCases[] = {
      {{"api-keys", "keys.yaml"}, "router.api_keys: keys.yaml: containers get the folder of a file at the same path"},
      {{"api-keys", "/keys.yaml"}, "router.api_keys: /keys.yaml: containers get the folder of a file, and / would"},
      {{"head-profile", "/model/p.json"}, "selection.head_profile: /model/p.json: containers get the folder of a file"},
      {{"tls-key", "/etc/winnow/{role}.key"}, "security.tls_key: /etc/winnow/{role}.key: containers get the folder of"},
  };
  for (const auto& c : kCases) {
    const auto folders = MountedFolders({c.file}, "router");
    EXPECT_EQ(folders.status().code(), absl::StatusCode::kInvalidArgument) << c.file.path;
    EXPECT_THAT(std::string(folders.status().message()), HasSubstr(c.error));
  }
}

}  // namespace
}  // namespace winnow
