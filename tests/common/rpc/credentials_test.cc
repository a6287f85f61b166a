#include "common/rpc/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "common/rpc/admin_service.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/rpc_server.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_certificates.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

// A router's server, and callers of each kind.
class CredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto credentials = Credentials::Load(server_files_);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    auto server = RpcServer::Start("127.0.0.1:0", {Named<v1::AdminService>(&admin_)}, *credentials);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // How Reach-less GetLoad ends, which routers and administrators may call.
  grpc::Status Call(const Credentials& credentials) {
    const auto stub = v1::AdminService::NewStub(NewChannel(server_->address(), credentials));
    grpc::ClientContext context;
    SetTimeout(context, std::chrono::seconds(20));
    v1::GetLoadResponse response;
    return stub->GetLoad(&context, {}, &response);
  }
  grpc::Status Call(const TlsFiles& files) {
    const auto credentials = Credentials::Load(files);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return credentials.ok() ? Call(*credentials) : grpc::Status(grpc::StatusCode::UNKNOWN, "");
  }

  const TempDir folder_;
  const TestAuthority authority_{folder_.path() + "/ours"};
  const TestAuthority strangers_{folder_.path() + "/strangers"};
  const TlsFiles server_files_ = authority_.Issue("server", "URI:spiffe://winnow/router");
  AdminServiceImpl admin_{{}, [] { return v1::RankLoad(); }};
  std::unique_ptr<RpcServer> server_;
};

TEST_F(CredentialsTest, CallersAreWhatTheirCertificateSays) {
  EXPECT_TRUE(Call(authority_.Issue("admin", "URI:spiffe://winnow/admin")).ok());
  const grpc::Status rank = Call(authority_.Issue("rank", "URI:spiffe://winnow/cache-rank"));
  EXPECT_EQ(rank.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(rank.error_message(), HasSubstr("the caller's is of spiffe://winnow/cache-rank"));
  for (const TlsFiles& files : {authority_.Issue("client", "URI:spiffe://winnow/client"),
                                TlsFiles{.certificate = "", .key = "", .authorities = authority_.certificate()}}) {
    const grpc::Status client = Call(files);
    EXPECT_EQ(client.error_code(), grpc::StatusCode::UNAUTHENTICATED) << client.error_message();
    EXPECT_THAT(client.error_message(),
                HasSubstr("GetLoad needs a certificate of spiffe://winnow/router or spiffe://winnow/admin"));
  }
}

TEST_F(CredentialsTest, StrangersAreNotConnected) {
  TlsFiles forged = strangers_.Issue("admin", "URI:spiffe://winnow/admin");
  forged.authorities = authority_.certificate();
  EXPECT_EQ(Call(forged).error_code(), grpc::StatusCode::UNAVAILABLE) << "signed by another authority";
  EXPECT_EQ(Call(Credentials()).error_code(), grpc::StatusCode::UNAVAILABLE) << "without TLS";
}

TEST_F(CredentialsTest, AServerMustBeOfTheAuthorityAndAProcess) {
  EXPECT_EQ(Call(strangers_.Issue("admin", "URI:spiffe://winnow/admin")).error_code(), grpc::StatusCode::UNAVAILABLE);
  server_ = nullptr;
  const auto client = Credentials::Load(authority_.Issue("client", "URI:spiffe://winnow/client"));
  ASSERT_TRUE(client.ok());
  auto server = RpcServer::Start("127.0.0.1:0", {Named<v1::AdminService>(&admin_)}, *client);
  ASSERT_TRUE(server.ok());
  server_ = *std::move(server);
  EXPECT_EQ(Call(authority_.Issue("admin", "URI:spiffe://winnow/admin")).error_code(), grpc::StatusCode::UNAVAILABLE)
      << "a client's certificate does not make a server";
}

TEST_F(CredentialsTest, ChangedFilesServeNewConnections) {
  const TlsFiles admin = authority_.Issue("admin", "URI:spiffe://winnow/admin");
  TlsFiles stranger = strangers_.Issue("admin", "URI:spiffe://winnow/admin");
  stranger.authorities = authority_.certificate();
  ASSERT_TRUE(Call(admin).ok());
  ASSERT_FALSE(Call(stranger).ok());
  // The server moves to the other authority.
  const TlsFiles next = strangers_.Issue("server", "URI:spiffe://winnow/router");
  for (const auto& [from, to] :
       {std::pair{next.key, server_files_.key}, std::pair{next.certificate, server_files_.certificate},
        std::pair{next.authorities, server_files_.authorities}}) {
    std::filesystem::copy_file(from, to + ".new");
    std::filesystem::rename(to + ".new", to);
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!Call(stranger).ok() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(Call(stranger).ok());
}

TEST_F(CredentialsTest, FilesThatCannotServeAreNamed) {
  const TlsFiles good = authority_.Issue("good", "URI:spiffe://winnow/router");
  const auto error = [](TlsFiles files) { return std::string(Credentials::Load(files).status().message()); };
  TlsFiles files = good;
  files.key = authority_.Issue("other", "URI:x:y").key;
  EXPECT_THAT(error(files), HasSubstr("is not that of the certificate in " + good.certificate));
  files = good;
  files.certificate = good.key;
  EXPECT_THAT(error(files), HasSubstr(good.key + " has no certificate"));
  files = good;
  files.authorities = folder_.path() + "/none.crt";
  EXPECT_EQ(error(files), "cannot read " + files.authorities);
  files = good;
  files.key = "";
  EXPECT_THAT(error(files), HasSubstr("need each other"));
  EXPECT_THAT(error({.certificate = good.certificate, .key = good.key, .authorities = ""}), HasSubstr("missing"));
  EXPECT_EQ(*UriNamesOf(good.certificate), std::vector<std::string>{"spiffe://winnow/router"});
}

}  // namespace
}  // namespace winnow
