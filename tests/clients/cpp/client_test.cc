// The C++ client against a running cluster: what it sends is answered, and errors are what the server said.
#include "clients/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_certificates.h"

namespace winnow::e2e {
namespace {

using absl::StatusCode;
using testing::HasSubstr;
using testing::SizeIs;

constexpr char kQuestion[] = "The code of nerita is 271828. What is the code of nerita?";
constexpr char kAnswer[] = "The code of nerita is 271828.";

v1::GenerateRequest Greedy(v1::GenerateRequest request, uint32_t max_tokens = 48) {
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

// More than any test waits for.
v1::GenerateRequest Endless() {
  v1::GenerateRequest request = Greedy(TextRequest("On and on"), 3500);
  request.set_ignore_eos(true);
  return request;
}

struct PlainServer {
  static Cluster::Options Options() { return {.flags = {"--budget=256", "--max-context=4096"}}; }
};

class CppClient : public SharedCluster<PlainServer> {
 protected:
  static Client ToServer() {
    absl::StatusOr<Client> client = Client::Connect(cluster_->grpc_address());
    EXPECT_THAT(client, IsOkStatus());
    return *std::move(client);
  }
  static GeneratedAnswer AnswerTo(const v1::GenerateRequest& request) {
    absl::StatusOr<GeneratedAnswer> answer = ToServer().Generate(request).ReadAll();
    EXPECT_THAT(answer, IsOkStatus());
    return std::move(answer).value_or(GeneratedAnswer());
  }
};

TEST_F(CppClient, AChatIsAnsweredPieceByPiece) {
  std::string pieces;
  AnswerStream stream = ToServer().Generate(Greedy(ChatRequest({{"user", kQuestion}})));
  const absl::StatusOr<GeneratedAnswer> answer = stream.ReadAll([&](const std::string& piece) { pieces += piece; });
  ASSERT_THAT(answer, IsOkStatus());
  ASSERT_THAT(answer->outputs, SizeIs(1));
  EXPECT_EQ(answer->outputs[0].text, kAnswer);
  EXPECT_EQ(pieces, kAnswer);
  EXPECT_EQ(answer->outputs[0].reason, v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer->outputs[0].token_ids.size(), answer->usage.completion_tokens());
  EXPECT_EQ(answer->usage.prompt_tokens(), answer->accepted.prompt_tokens());
  EXPECT_GT(answer->outputs[0].selection.decode_steps(), 0u);
}

TEST_F(CppClient, TextAndItsTokensAreTheSamePrompt) {
  const absl::StatusOr<std::vector<uint32_t>> ids = ToServer().Tokenize(kQuestion);
  ASSERT_THAT(ids, IsOkStatus());
  EXPECT_THAT(ToServer().Detokenize(*ids, /*skip_special_tokens=*/true), IsOkStatus());
  EXPECT_EQ(*ToServer().Detokenize(*ids, /*skip_special_tokens=*/true), kQuestion);
  const GeneratedAnswer of_text = AnswerTo(Greedy(TextRequest(kQuestion), 16));
  const GeneratedAnswer of_tokens = AnswerTo(Greedy(TokensRequest(*ids), 16));
  EXPECT_EQ(of_text.usage.prompt_tokens(), ids->size());
  ASSERT_THAT(of_text.outputs, SizeIs(1));
  ASSERT_THAT(of_tokens.outputs, SizeIs(1));
  EXPECT_EQ(of_text.outputs[0].token_ids, of_tokens.outputs[0].token_ids);
}

TEST_F(CppClient, EverySampleHasItsOutput) {
  v1::GenerateRequest request = ChatRequest({{"user", kQuestion}});
  request.set_n(3);
  request.set_max_tokens(12);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_seed(7);
  const GeneratedAnswer answer = AnswerTo(request);
  ASSERT_THAT(answer.outputs, SizeIs(3));
  for (const GeneratedOutput& output : answer.outputs) {
    EXPECT_THAT(output.token_ids, SizeIs(12));
    EXPECT_EQ(output.reason, v1::FINISH_REASON_LENGTH);
  }
}

TEST_F(CppClient, AStopStringIsTold) {
  v1::GenerateRequest request = Greedy(ChatRequest({{"user", kQuestion}}));
  request.add_stop(" is ");
  const GeneratedAnswer answer = AnswerTo(request);
  ASSERT_THAT(answer.outputs, SizeIs(1));
  EXPECT_EQ(answer.outputs[0].text, "The code of nerita");
  EXPECT_EQ(answer.outputs[0].stop_match, " is ");
}

TEST_F(CppClient, AForkGoesOnAsItsSourceDoes) {
  AnswerStream source = ToServer().Generate(Endless());
  v1::GenerateResponse event;
  ASSERT_TRUE(source.Read(event));
  ASSERT_TRUE(event.has_accepted());
  const std::string id = event.accepted().request_id();
  std::vector<uint32_t> source_ids;
  const auto read_source = [&](size_t tokens) {
    while (source_ids.size() < tokens && source.Read(event)) {
      for (const v1::Token& token : event.delta().tokens()) source_ids.push_back(token.id());
    }
  };
  read_source(4);

  v1::ForkRequest request;
  request.set_source_request_id(id);
  request.set_max_tokens(600);
  const absl::StatusOr<GeneratedAnswer> fork = ToServer().Fork(request).ReadAll();
  ASSERT_THAT(fork, IsOkStatus());
  ASSERT_THAT(fork->outputs, SizeIs(1));
  const size_t begin = fork->accepted.forked_tokens();
  read_source(600);
  ASSERT_GE(source_ids.size(), 600u);
  EXPECT_GE(begin, 4u);
  EXPECT_EQ(fork->outputs[0].token_ids,
            std::vector<uint32_t>(source_ids.begin() + static_cast<int64_t>(begin), source_ids.begin() + 600));
}

TEST_F(CppClient, AnAnswerIsResumedWhereItsStreamWasLost) {
  v1::GenerateRequest request = TextRequest("On and on");
  request.set_max_tokens(200);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(7);
  const absl::StatusOr<GeneratedAnswer> whole = ToServer().Generate(request).ReadAll();
  ASSERT_THAT(whole, IsOkStatus());

  request.set_resumable(true);
  v1::ResumeRequest rest;
  std::vector<uint32_t> ids;
  {
    AnswerStream lost = ToServer().Generate(request);
    v1::GenerateResponse event;
    while (ids.size() < 5 && lost.Read(event)) {
      if (event.has_accepted()) rest.set_resume_token(event.accepted().resume_token());
      for (const v1::Token& token : event.delta().tokens()) ids.push_back(token.id());
    }
  }
  *rest.mutable_request() = request;
  rest.add_positions()->set_next_index(static_cast<uint32_t>(ids.size()));
  const absl::StatusOr<GeneratedAnswer> resumed = ToServer().Resume(rest).ReadAll();
  ASSERT_THAT(resumed, IsOkStatus());
  ids.insert(ids.end(), resumed->outputs[0].token_ids.begin(), resumed->outputs[0].token_ids.end());
  EXPECT_EQ(ids, whole->outputs[0].token_ids);
}

TEST_F(CppClient, AnAbortedRequestSaysSo) {
  v1::GenerateRequest request = Endless();
  request.set_request_id("to-be-aborted");
  AnswerStream stream = ToServer().Generate(request);
  v1::GenerateResponse event;
  ASSERT_TRUE(stream.Read(event));
  EXPECT_EQ(event.accepted().request_id(), "to-be-aborted");
  EXPECT_THAT(ToServer().Abort("to-be-aborted"), IsOkStatus());
  EXPECT_THAT(stream.Finish(), FailsWith(StatusCode::kCancelled, testing::_));
  EXPECT_THAT(ToServer().Abort("never-begun"), FailsWith(StatusCode::kNotFound, HasSubstr("never-begun")));
}

TEST_F(CppClient, AStreamThatIsCancelledOrDroppedEndsItsRequest) {
  const auto running = [] { return cluster_->MetricsOf("router-0").Value("winnow_num_requests_running"); };
  {
    v1::GenerateResponse event;
    AnswerStream cancelled = ToServer().Generate(Endless()), dropped = ToServer().Generate(Endless());
    ASSERT_TRUE(cancelled.Read(event));
    ASSERT_TRUE(dropped.Read(event));
    cancelled.Cancel();
    EXPECT_THAT(cancelled.Finish(), FailsWith(StatusCode::kCancelled, testing::_));
    EXPECT_FALSE(cancelled.Read(event));
  }
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(30), [&] { return running() == 0; }));
}

TEST_F(CppClient, ACallEndsAtItsDeadline) {
  const Client hurried = ToServer().WithTimeout(std::chrono::milliseconds(300));
  EXPECT_THAT(hurried.Generate(Endless()).ReadAll(), FailsWith(StatusCode::kDeadlineExceeded, testing::_));
}

TEST_F(CppClient, ModelsAndServerAreDescribed) {
  const absl::StatusOr<std::vector<v1::Model>> models = ToServer().ListModels();
  ASSERT_THAT(models, IsOkStatus());
  ASSERT_THAT(*models, SizeIs(1));
  EXPECT_EQ(models->front().max_context_tokens(), 4096u);
  const absl::StatusOr<v1::GetServerInfoResponse> info = ToServer().GetServerInfo();
  ASSERT_THAT(info, IsOkStatus());
  EXPECT_EQ(info->identity().role(), v1::ROLE_ROUTER);
  EXPECT_THAT(info->options_yaml(), HasSubstr("max-queue"));
}

TEST_F(CppClient, ErrorsAreWhatTheServerSaid) {
  EXPECT_THAT(ToServer().Generate(v1::GenerateRequest()).ReadAll(),
              FailsWith(StatusCode::kInvalidArgument, HasSubstr("text")));
  v1::GenerateRequest request = TextRequest("hello");
  request.set_model("another");
  EXPECT_THAT(ToServer().Generate(request).ReadAll(), FailsWith(StatusCode::kNotFound, HasSubstr("another")));
  request = TextRequest("hello");
  request.mutable_selection()->set_specification("psychic");
  EXPECT_THAT(ToServer().Generate(request).ReadAll(), FailsWith(StatusCode::kInvalidArgument, HasSubstr("psychic")));
}

TEST(CppClientAlone, ACallWithoutAServerSaysWhereNobodyIs) {
  const absl::StatusOr<Client> client = Client::Connect("127.0.0.1:1");
  ASSERT_THAT(client, IsOkStatus());
  EXPECT_THAT(client->ListModels(), FailsWith(StatusCode::kUnavailable, HasSubstr("no server at 127.0.0.1:1")));
  EXPECT_THAT(client->Generate(TextRequest("x")).ReadAll(),
              FailsWith(StatusCode::kUnavailable, HasSubstr("no server at 127.0.0.1:1")));
}

// A server with TLS and keys.
struct Site {
  const TempDir folder;
  const TestAuthority authority{folder.path() + "/ours"};
  std::string key;

  std::string path(const std::string& name) const { return folder.path() + "/ours/" + name; }
};

Site& TheSite() {
  static Site site;
  return site;
}

// What the command printed, without the line's end.
std::string OutputOf(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << command;
  while (output.ends_with('\n')) output.pop_back();
  return output;
}

struct SecuredServer {
  static Cluster::Options Options() {
    Site& site = TheSite();
    for (const char* role : {"router", "inference-rank", "cache-rank"}) {
      site.authority.Issue(role, std::string("URI:spiffe://winnow/") + role);
    }
    site.key = OutputOf(WinnowBinary() + " keys add " + site.folder.path() + "/keys.yaml --name=client");
    return {.flags = {"--budget=256", "--max-context=4096", "--api-keys=" + site.folder.path() + "/keys.yaml",
                      "--tls-cert=" + site.path("{role}.crt"), "--tls-key=" + site.path("{role}.key"),
                      "--tls-ca=" + site.path("ca.crt")}};
  }
};

class CppClientWithTls : public SharedCluster<SecuredServer> {
 protected:
  static absl::StatusOr<GeneratedAnswer> Ask(const ClientOptions& options) {
    absl::StatusOr<Client> client = Client::Connect(cluster_->grpc_address(), options);
    if (!client.ok()) return client.status();
    return client->Generate(Greedy(ChatRequest({{"user", kQuestion}}))).ReadAll();
  }
};

TEST_F(CppClientWithTls, IsServedWithAKeyAndTheAuthority) {
  const absl::StatusOr<GeneratedAnswer> answer = Ask({.api_key = TheSite().key, .tls_ca = TheSite().path("ca.crt")});
  ASSERT_THAT(answer, IsOkStatus());
  ASSERT_THAT(answer->outputs, SizeIs(1));
  EXPECT_EQ(answer->outputs[0].text, kAnswer);
}

TEST_F(CppClientWithTls, IsToldWhatIsMissing) {
  EXPECT_THAT(Ask({.tls_ca = TheSite().path("ca.crt")}), FailsWith(StatusCode::kUnauthenticated, HasSubstr("key")));
  EXPECT_THAT(Ask({.api_key = "wrong", .tls_ca = TheSite().path("ca.crt")}),
              FailsWith(StatusCode::kUnauthenticated, HasSubstr("key")));
  EXPECT_THAT(Ask({.tls_ca = "/no/such/file"}), FailsWith(StatusCode::kInvalidArgument, HasSubstr("/no/such/file")));
  // Without TLS: nothing that the server says can be understood, but that there is one is known.
  EXPECT_THAT(Ask({.api_key = TheSite().key}),
              FailsWith(StatusCode::kUnavailable, testing::Not(HasSubstr("there is no server"))));
}

}  // namespace
}  // namespace winnow::e2e
