// A cluster with TLS: it serves, each caller is refused with a reason what its certificate is not for, and certificates
// change without a restart.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "common/rpc/channel.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_certificates.h"
#include "winnow/v1/admin.grpc.pb.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/generation.grpc.pb.h"
#include "winnow/v1/membership.grpc.pb.h"
#include "winnow/v1/rank.grpc.pb.h"
#include "winnow/v1/transport.grpc.pb.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr std::chrono::seconds kLong{30};

// What a shell command prints.
std::string Shell(const std::string& command) {
  std::FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::string output;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  pclose(pipe);
  return output;
}

struct Site {
  const TempDir folder;
  const TestAuthority authority{folder.path() + "/ours"};
  const TestAuthority strangers{folder.path() + "/strangers"};

  std::string path(const std::string& name) const { return folder.path() + "/ours/" + name; }
  void IssueHttp() const { authority.Issue("http", "DNS:localhost,IP:127.0.0.1"); }
  // Of a process or person of that role.
  TlsFiles Of(const std::string& role) const { return authority.Issue("test-" + role, "URI:spiffe://winnow/" + role); }
};

Site& TheSite() {
  static Site site;
  return site;
}

struct ServerWithTls {
  static Cluster::Options Options() {
    const Site& site = TheSite();
    for (const char* role : {"router", "inference-rank", "cache-rank"}) {
      site.authority.Issue(role, std::string("URI:spiffe://winnow/") + role + ",DNS:localhost");
    }
    site.IssueHttp();
    return {.flags = {"--budget=256", "--max-context=4096", "--tls-cert=" + site.path("{role}.crt"),
                      "--tls-key=" + site.path("{role}.key"), "--tls-ca=" + site.path("ca.crt"),
                      "--http-tls-cert=" + site.path("http.crt"), "--http-tls-key=" + site.path("http.key")}};
  }
};

class Tls : public SharedCluster<ServerWithTls> {
 protected:
  static std::string Curl(const std::string& arguments) {
    return Shell("curl -sS --max-time 60 --cacert " + TheSite().path("ca.crt") + " " + arguments);
  }
  static std::string Url(const std::string& path) { return "https://" + cluster_->http_address() + path; }

  // gRPC address of a rank, as the router's table has it.
  static std::string AddressOf(const std::string& rank) {
    const Json ranks = Json::parse(Curl(Url("/ranks")))["ranks"];
    for (const Json& each : ranks) {
      if (each["rank"] == rank) return each["address"];
    }
    ADD_FAILURE() << "no rank " << rank << " in " << ranks.dump();
    return "";
  }
  static std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address, const TlsFiles& files) {
    const auto credentials = files.empty() ? Credentials() : Credentials::Load(files);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return NewChannel(address, credentials.value_or(Credentials()));
  }
};

TEST_F(Tls, ServesOverHttpsAndGrpc) {
  const std::string answer =
      Curl(Url("/v1/completions") + R"( -d '{"prompt": [1000, 1001], "max_tokens": 3, "temperature": 0}')");
  EXPECT_THAT(answer, HasSubstr("\"completion_tokens\":3"));
  EXPECT_THAT(Curl(Url("/v1/completions") + R"( -d '{"prompt": [1000], "max_tokens": 3, "stream": true}')"),
              HasSubstr("data: [DONE]"));
  EXPECT_THAT(Curl("-o /dev/null -w '%{http_version} %{ssl_verify_result}' " + Url("/health")), HasSubstr("1.1 0"));
  // A client of the API needs the authority's certificate alone.
  const auto stub = v1::GenerationService::NewStub(
      ChannelTo(cluster_->grpc_address(), {.certificate = "", .key = "", .authorities = TheSite().path("ca.crt")}));
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(1000);
  request.set_max_tokens(2);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(Shell(WinnowBinary() + " generate --raw --max-tokens=2 --server=" + cluster_->grpc_address() +
                    " --tls-ca=" + TheSite().path("ca.crt") + " x; echo code $?"),
              HasSubstr("code 0"));
}

TEST_F(Tls, HttpsRefusesWhatIsNotIt) {
  const std::string port = cluster_->http_address();
  EXPECT_THAT(Curl("http://" + port + "/health"), HasSubstr("curl: ("));
  EXPECT_THAT(Shell("curl -sS --max-time 60 --cacert " + TheSite().strangers.certificate() + " " + Url("/health")),
              HasSubstr("certificate"));
  EXPECT_THAT(Shell("openssl s_client -connect " + port + " -tls1_1 -cipher DEFAULT@SECLEVEL=0 </dev/null"),
              HasSubstr("alert protocol version"));
  EXPECT_THAT(Shell("openssl s_client -connect " + port + " -alpn h2 </dev/null"),
              HasSubstr("no application protocol"));
  EXPECT_THAT(Shell("openssl s_client -connect " + port + " -alpn h2,http/1.1 </dev/null"),
              HasSubstr("ALPN protocol: http/1.1"));
}

// Callers x calls. Each call stands for what its caller could do with it: join, have a rank compute, read KV, record.
TEST_F(Tls, EachCallIsForItsRolesAlone) {
  const Site& site = TheSite();
  TlsFiles wrong_authority = site.strangers.Issue("admin", "URI:spiffe://winnow/admin");
  wrong_authority.authorities = site.path("ca.crt");
  const struct Caller {
    const char* name;
    TlsFiles files;
    Code register_rank, dispatch, open, exchange, load;
  } callers[] = {
      {"without TLS",
       {},
       Code::UNAVAILABLE,
       Code::UNAVAILABLE,
       Code::UNAVAILABLE,
       Code::UNAVAILABLE,
       Code::UNAVAILABLE},
      {"another authority's", wrong_authority, Code::UNAVAILABLE, Code::UNAVAILABLE, Code::UNAVAILABLE,
       Code::UNAVAILABLE, Code::UNAVAILABLE},
      {"without a certificate",
       {.certificate = "", .key = "", .authorities = site.path("ca.crt")},
       Code::UNAUTHENTICATED,
       Code::UNAUTHENTICATED,
       Code::UNAUTHENTICATED,
       Code::UNAUTHENTICATED,
       Code::UNAUTHENTICATED},
      {"a client's", site.Of("client"), Code::UNAUTHENTICATED, Code::UNAUTHENTICATED, Code::UNAUTHENTICATED,
       Code::UNAUTHENTICATED, Code::UNAUTHENTICATED},
      {"an administrator's", site.Of("admin"), Code::PERMISSION_DENIED, Code::PERMISSION_DENIED,
       Code::PERMISSION_DENIED, Code::PERMISSION_DENIED, Code::OK},
      {"a router's", site.Of("router"), Code::PERMISSION_DENIED, Code::INVALID_ARGUMENT, Code::PERMISSION_DENIED,
       Code::PERMISSION_DENIED, Code::OK},
      {"a cache rank's", site.Of("cache-rank"), Code::PERMISSION_DENIED, Code::PERMISSION_DENIED,
       Code::PERMISSION_DENIED, Code::PERMISSION_DENIED, Code::PERMISSION_DENIED},
      {"an inference rank's", site.Of("inference-rank"), Code::INVALID_ARGUMENT, Code::PERMISSION_DENIED,
       Code::FAILED_PRECONDITION, Code::INVALID_ARGUMENT, Code::PERMISSION_DENIED},
  };
  const std::string router = cluster_->grpc_address(), inference = AddressOf("inference-0"),
                    cache = AddressOf("cache-0");
  for (const Caller& caller : callers) {
    const auto code_of = [](const auto& call) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kLong);
      return call(&context).error_code();
    };
    const auto to_router = ChannelTo(router, caller.files), to_inference = ChannelTo(inference, caller.files),
               to_cache = ChannelTo(cache, caller.files);
    v1::RegisterResponse registered;
    v1::OpenSequenceResponse opened;
    v1::GetLoadResponse load;
    // What passes the certificate is refused for what it says: it says nothing.
    const auto means = [&](Code expected, Code code) {
      const bool passes = expected == Code::INVALID_ARGUMENT || expected == Code::FAILED_PRECONDITION;
      const bool refused_by_certificate =
          code == Code::UNAUTHENTICATED || code == Code::PERMISSION_DENIED || code == Code::UNAVAILABLE;
      return passes ? !refused_by_certificate : code == expected;
    };
    const Code register_rank =
        code_of([&](auto* c) { return v1::MembershipService::NewStub(to_router)->Register(c, {}, &registered); });
    EXPECT_TRUE(means(caller.register_rank, register_rank)) << caller.name << " Register " << register_rank;
    const Code dispatch = code_of([&](auto* c) {
      const auto stream = v1::RankService::NewStub(to_inference)->Dispatch(c);
      stream->Write(v1::DispatchRequest());
      stream->WritesDone();
      v1::DispatchResponse response;
      while (stream->Read(&response)) {
      }
      return stream->Finish();
    });
    EXPECT_TRUE(means(caller.dispatch, dispatch)) << caller.name << " Dispatch " << dispatch;
    const Code open =
        code_of([&](auto* c) { return v1::CacheService::NewStub(to_cache)->OpenSequence(c, {}, &opened); });
    EXPECT_TRUE(means(caller.open, open)) << caller.name << " OpenSequence " << open;
    const Code exchange = code_of([&](auto* c) {
      const auto stream = v1::TransportService::NewStub(to_cache)->Exchange(c);
      stream->Write(v1::ExchangeRequest());
      stream->WritesDone();
      v1::ExchangeResponse response;
      while (stream->Read(&response)) {
      }
      return stream->Finish();
    });
    EXPECT_TRUE(means(caller.exchange, exchange)) << caller.name << " Exchange " << exchange;
    for (const auto& channel : {to_router, to_inference, to_cache}) {
      EXPECT_EQ(code_of([&](auto* c) { return v1::AdminService::NewStub(channel)->GetLoad(c, {}, &load); }),
                caller.load)
          << caller.name;
    }
  }
}

TEST_F(Tls, AdministersForAdministratorsAlone) {
  const auto admin = [](const char* command, const TlsFiles& files) {
    return Shell(WinnowBinary() + " admin " + command + " --server=" + cluster_->grpc_address() +
                 " --tls-ca=" + files.authorities + " --tls-cert=" + files.certificate + " --tls-key=" + files.key +
                 " 2>&1; echo code $?");
  };
  const std::string list = admin("list", TheSite().Of("admin"));
  EXPECT_THAT(list, HasSubstr("inference-0"));
  EXPECT_THAT(list, HasSubstr("code 0"));
  EXPECT_THAT(admin("reload", TheSite().Of("admin")),
              HasSubstr("router.crt: certificate, key and authorities are good"));
  for (const char* command : {"list", "cordon inference-0", "drain inference-0", "weights inference-0=2", "reload"}) {
    const std::string refused = admin(command, TheSite().Of("client"));
    EXPECT_THAT(refused, HasSubstr("needs a certificate of spiffe://winnow/admin")) << command;
    EXPECT_THAT(refused, HasSubstr("code 1")) << command;
  }
}

TEST_F(Tls, ARankRegistersAsWhatItsCertificateSays) {
  v1::RegisterRequest request;
  request.mutable_identity()->set_role(v1::ROLE_INFERENCE_RANK);
  request.mutable_identity()->set_address("127.0.0.1:1");
  grpc::ClientContext context;
  v1::RegisterResponse response;
  const grpc::Status status =
      v1::MembershipService::NewStub(ChannelTo(cluster_->grpc_address(), TheSite().Of("cache-rank")))
          ->Register(&context, request, &response);
  EXPECT_EQ(status.error_code(), Code::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("not of spiffe://winnow/inference-rank"));
}

// The keys of links are secret, as gRPC is; within a host frames of strangers are refused, and rows stay plain.
TEST_F(Tls, LinksWithinAHostHaveAuthenticatedHeaders) {
  EXPECT_THAT(Curl(Url("/v1/completions") + R"( -d '{"prompt": [1000, 1001], "max_tokens": 3}')"),
              HasSubstr("\"completion_tokens\":3"));
  for (const char* rank : {"cache-0", "inference-0"}) {
    const Metrics metrics = cluster_->MetricsOf(rank);
    EXPECT_EQ(metrics.Value("winnow_data_plane_links_total", {{"protection", "headers"}}), 1) << rank;
    EXPECT_EQ(metrics.Value("winnow_data_plane_links_total"), 1) << rank;
    EXPECT_EQ(metrics.Value("winnow_data_plane_refused_frames_total"), 0) << rank;
  }
}

TEST(TlsDataPlane, AnswersAlikeWhereItIsEncrypted) {
  const std::string request =
      R"(/v1/completions -d '{"prompt": [1000, 1001, 1002], "max_tokens": 30, "temperature": 0}')";
  const auto text_of = [](const std::string& answer) { return Json::parse(answer)["choices"][0]["text"]; };
  const std::string flags[] = {"--data-plane=plain", "--data-plane=authenticated", "--data-plane=encrypted"};
  std::vector<Json> texts;
  for (const std::string& flag : flags) {
    Cluster::Options options = ServerWithTls::Options();
    options.flags.push_back(flag);
    const auto cluster = Cluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status().message();
    texts.push_back(text_of(Shell("curl -sS --max-time 60 --cacert " + TheSite().path("ca.crt") + " https://" +
                                  (*cluster)->http_address() + request)));
    const std::string level = flag.substr(flag.find('=') + 1);
    EXPECT_EQ((*cluster)->MetricsOf("cache-0").Value("winnow_data_plane_links_total", {{"protection", level}}), 1);
    EXPECT_THAT((*cluster)->process().Log(), HasSubstr("frames of a link are " + level));
    EXPECT_TRUE((*cluster)->Stop().ok());
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST(TlsDataPlane, IsNotEncryptedByKeysThatCouldBeRead) {
  EXPECT_THAT(Shell(WinnowBinary() + " cache-rank --metrics=127.0.0.1:0 --data-plane=encrypted"),
              HasSubstr("--data-plane=encrypted needs --tls-cert, --tls-key and --tls-ca"));
}

TEST_F(Tls, CertificatesChangeWithoutRestart) {
  const auto serial = [] {
    return Shell("openssl s_client -connect " + cluster_->http_address() + " </dev/null 2>/dev/null" +
                 " | openssl x509 -noout -serial");
  };
  const std::string before = serial();
  EXPECT_THAT(before, HasSubstr("serial="));
  TheSite().IssueHttp();
  EXPECT_TRUE(WaitUntil(kLong, [&] { return serial() != before; }));
  EXPECT_EQ(Curl(Url("/health")), "{\"status\":\"ok\"}");
}

TEST(Exposure, NeedsTlsOrAWord) {
  const std::string router = WinnowBinary() + " router --model=" + DemoModel() + " --metrics=127.0.0.1:0";
  EXPECT_THAT(Shell(router + " --grpc=127.0.0.1:0 --http=0.0.0.0:0"),
              HasSubstr("--http=0.0.0.0:0 is reached from other machines, and without TLS: set --http-tls-cert"));
  EXPECT_THAT(Shell(router + " --http=127.0.0.1:0 --grpc=0.0.0.0:0"),
              HasSubstr("set --tls-cert, --tls-key and --tls-ca, or --insecure"));
  EXPECT_THAT(Shell(WinnowBinary() + " up --model=" + DemoModel() + " --http=0.0.0.0:0"),
              HasSubstr("--http=0.0.0.0:0 is reached from other machines"));
  EXPECT_THAT(Shell(WinnowBinary() + " cache-rank --grpc=0.0.0.0:0 --metrics=127.0.0.1:0"), HasSubstr("--insecure"));
}

TEST(Exposure, ACertificateMustBeOfItsRole) {
  const TlsFiles rank = TheSite().authority.Issue("a-rank", "URI:spiffe://winnow/cache-rank");
  EXPECT_THAT(Shell(WinnowBinary() + " router --model=" + DemoModel() +
                    " --metrics=127.0.0.1:0 --grpc=127.0.0.1:0 --http=127.0.0.1:0 --tls-cert=" + rank.certificate +
                    " --tls-key=" + rank.key + " --tls-ca=" + rank.authorities),
              HasSubstr("has no URI name spiffe://winnow/router"));
}

}  // namespace
}  // namespace winnow::e2e
