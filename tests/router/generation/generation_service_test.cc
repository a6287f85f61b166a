#include "router/generation/generation_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "router/generation/generate_request.h"
#include "router/generation/model_services.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bytes are ids.
class ByteCodec : public TextCodec {
 public:
  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text, bool add_special_tokens) const override {
    if (text == "\xff") return absl::InvalidArgumentError("not UTF-8");
    std::vector<uint32_t> ids;
    if (add_special_tokens) ids.push_back(1);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string Decode(const std::vector<uint32_t>& ids, bool skip_special_tokens) const override {
    std::string text;
    for (const uint32_t id : ids) {
      if (id != 1 || !skip_special_tokens) text += static_cast<char>(id);
    }
    return text;
  }
  std::string TokenText(uint32_t id) const override { return {static_cast<char>(id)}; }
  bool TemplateReads(std::string_view) const override { return false; }
  std::optional<uint32_t> TokenId(std::string_view) const override { return std::nullopt; }
  absl::StatusOr<std::string> RenderChat(const nlohmann::ordered_json& messages, bool,
                                         const nlohmann::ordered_json&) const override {
    std::string text;
    for (const auto& m : messages) {
      absl::StrAppend(&text, m["role"].get<std::string>(), ":", m["content"].get<std::string>(), ";");
    }
    return text;
  }
};

// Hands the test what was started; the test says what is generated.
class ScriptedGeneration : public Generation {
 public:
  struct Handle : GenerationHandle {
    explicit Handle(ScriptedGeneration* o) : owner(o) {}
    ~Handle() override {
      std::lock_guard lock(owner->mutex);
      ++owner->destroyed;
      owner->changed.notify_all();
    }
    ScriptedGeneration* owner;
  };
  absl::StatusOr<std::unique_ptr<GenerationHandle>> Start(GenerationInput i, GenerationObserver* o) override {
    std::lock_guard lock(mutex);
    if (!refusal.ok()) return refusal;
    input = std::move(i);
    observer = o;
    ++started;
    changed.notify_all();
    return std::make_unique<Handle>(this);
  }
  GenerationObserver* AwaitStart() {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [this] { return started > 0; }));
    return observer;
  }
  void AwaitDestroyed(int count) {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return destroyed == count; }));
  }

  std::mutex mutex;
  std::condition_variable changed;
  absl::Status refusal;
  GenerationInput input;
  GenerationObserver* observer = nullptr;
  int started = 0;
  int destroyed = 0;
};

ServedModel Model() {
  ServedModel model;
  model.id = "demo";
  model.max_context_tokens = 64;
  model.vocab_size = 256;
  model.max_budget_tokens = 2048;
  return model;
}

TextDelta Delta(uint32_t first_index, std::vector<uint32_t> ids, std::string text) {
  TextDelta delta;
  delta.first_index = first_index;
  delta.text = std::move(text);
  for (const uint32_t id : ids) delta.tokens.emplace_back().set_id(id);
  return delta;
}

class GenerationServiceTest : public ::testing::Test {
 protected:
  GenerationServiceTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    builder.RegisterService(&tokenizer_service_);
    builder.RegisterService(&model_service_);
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials());
    stub_ = v1::GenerationService::NewStub(channel_);
  }
  ~GenerationServiceTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  static v1::GenerateRequest Request(const std::string& id = "r1") {
    v1::GenerateRequest request;
    request.set_request_id(id);
    request.set_text("hi");
    return request;
  }
  grpc::Status Abort(const std::string& id) {
    grpc::ClientContext context;
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    return stub_->Abort(&context, request, &response);
  }
  grpc::Status Outcome(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }

  std::vector<absl::StatusCode> Ends() {
    std::lock_guard lock(ends_mutex_);
    return ends_;
  }

  std::mutex ends_mutex_;
  std::vector<absl::StatusCode> ends_;  // guarded by ends_mutex_
  absl::Status ready_;
  ByteCodec codec_;
  ScriptedGeneration generation_;
  GenerationService service_{{.model = [this]() -> absl::StatusOr<ServedModel> {
                                if (!ready_.ok()) return ready_;
                                return Model();
                              },
                              .on_end =
                                  [this](absl::StatusCode code) {
                                    std::lock_guard lock(ends_mutex_);
                                    ends_.push_back(code);
                                  }},
                             &generation_,
                             &codec_};
  TokenizerService tokenizer_service_{&codec_, 256};
  ModelService model_service_{Model};
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

TEST_F(GenerationServiceTest, StreamsWhatTheGenerationSays) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request();
  request.set_n(2);
  request.set_max_tokens(9);
  request.mutable_sampling()->set_temperature(0.5f);
  request.add_stop("\n");
  request.add_stop_token_ids(3);
  request.set_ignore_eos(true);
  request.set_top_logprobs(4);
  request.mutable_selection()->set_specification("exact-token,budget=100");
  const auto reader = stub_->Generate(&context, request);
  GenerationObserver* observer = generation_.AwaitStart();
  EXPECT_THAT(generation_.input.prompt_token_ids, ElementsAre(1, 'h', 'i'));
  EXPECT_EQ(generation_.input.n, 2u);
  EXPECT_EQ(generation_.input.max_tokens, 9u);
  EXPECT_EQ(generation_.input.sampling.temperature(), 0.5f);
  EXPECT_THAT(generation_.input.stop, ElementsAre("\n"));
  EXPECT_THAT(generation_.input.stop_token_ids, ElementsAre(3));
  EXPECT_TRUE(generation_.input.ignore_eos);
  EXPECT_EQ(generation_.input.top_logprobs, 4u);

  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.accepted().request_id(), "r1");
  EXPECT_EQ(response.accepted().prompt_tokens(), 3u);
  EXPECT_EQ(response.accepted().selection(), "exact-token,budget=100");
  observer->OnDelta(Delta(0, {5, 6}, "ab"));
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.delta().text(), "ab");
  EXPECT_EQ(response.delta().tokens_size(), 2);
  OutputEnd end{0, v1::FINISH_REASON_STOP, "\n", v1::SelectionStats()};
  end.stats->set_decode_steps(2);
  observer->OnOutputEnd(end);
  observer->OnDone({3, 2});
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.output_finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.output_finished().stop_match(), "\n");
  EXPECT_EQ(response.output_finished().selection().decode_steps(), 2u);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.usage().prompt_tokens(), 3u);
  EXPECT_EQ(response.usage().completion_tokens(), 2u);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
  generation_.AwaitDestroyed(1);
}

TEST_F(GenerationServiceTest, TellsHowFarThePromptIsWhereItIsAsked) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request();
  request.set_prompt_progress(true);
  const auto reader = stub_->Generate(&context, request);
  GenerationObserver* observer = generation_.AwaitStart();
  EXPECT_TRUE(generation_.input.prompt_progress);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_accepted());
  observer->OnPromptProgress({.computed_tokens = 2, .cached_tokens = 1, .prompt_tokens = 3});
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.prompt_progress().computed_tokens(), 2u);
  EXPECT_EQ(response.prompt_progress().cached_tokens(), 1u);
  EXPECT_EQ(response.prompt_progress().prompt_tokens(), 3u);
  observer->OnDone({3, 0});
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_usage());
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GenerationServiceTest, NoTokenIsLostWhenDeltasAreMerged) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  GenerationObserver* observer = generation_.AwaitStart();
  constexpr uint32_t kTokens = 5000;
  for (uint32_t i = 0; i < kTokens; ++i) observer->OnDelta(Delta(i, {i % 256}, "x"));
  observer->OnOutputEnd({0, v1::FINISH_REASON_LENGTH, std::nullopt, {}});
  observer->OnDone({3, kTokens});
  uint32_t next = 0;
  size_t text_bytes = 0;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (!response.has_delta()) continue;
    EXPECT_EQ(response.delta().first_index(), next);
    for (const v1::Token& token : response.delta().tokens()) EXPECT_EQ(token.id(), next++ % 256);
    text_bytes += response.delta().text().size();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(next, kTokens);
  EXPECT_EQ(text_bytes, kTokens);
}

TEST_F(GenerationServiceTest, AFailureEndsTheStreamWithItsStatusAfterWhatCameBefore) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  GenerationObserver* observer = generation_.AwaitStart();
  observer->OnDelta(Delta(0, {5}, "a"));
  observer->OnFailed(absl::DataLossError("gone"));
  v1::GenerateResponse response;
  int deltas = 0;
  while (reader->Read(&response)) deltas += response.has_delta();
  EXPECT_EQ(deltas, 1);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(status.error_message(), "gone");
}

TEST_F(GenerationServiceTest, AClientThatGoesAwayCancelsTheGeneration) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  GenerationObserver* observer = generation_.AwaitStart();
  context.TryCancel();
  generation_.AwaitDestroyed(1);
  (void)observer;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerationServiceTest, AClientThatDoesNotReadIsCutOff) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  GenerationObserver* observer = generation_.AwaitStart();
  // More than the queue, the transport's windows and the client's read-ahead hold together.
  const std::string text(size_t{1} << 20, 'x');
  bool cut = false;
  for (uint32_t i = 0; i < 64 && !cut; ++i) {
    observer->OnDelta(Delta(i, {1}, text));
    std::lock_guard lock(generation_.mutex);
    cut = generation_.destroyed == 1;
  }
  EXPECT_TRUE(cut);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(GenerationServiceTest, AbortEndsARequestByItsId) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request("to-abort"));
  generation_.AwaitStart();
  EXPECT_EQ(Outcome(Request("to-abort")).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(Abort("to-abort").ok());
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  generation_.AwaitDestroyed(1);
  EXPECT_TRUE(Abort("to-abort").ok());
  EXPECT_EQ(Abort("never").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GenerationServiceTest, ErrorsBeforeTheFirstMessageAreTheCallsStatus) {
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_temperature(-1);
  grpc::Status status = Outcome(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("temperature"));

  request = Request();
  request.set_model("other");
  EXPECT_EQ(Outcome(request).error_code(), grpc::StatusCode::NOT_FOUND);
  generation_.refusal = absl::ResourceExhaustedError("queue is full");
  EXPECT_EQ(Outcome(Request()).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ready_ = absl::UnavailableError("no inference rank can take work");
  EXPECT_EQ(Outcome(Request()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GenerationServiceTest, EveryCallIsCountedOnceWithItsCode) {
  v1::GenerateRequest request = Request();
  request.mutable_selection()->set_specification("winnow,sinks=7");
  EXPECT_EQ(Outcome(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  generation_.AwaitStart()->OnDone({});
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(Ends(), ElementsAre(absl::StatusCode::kInvalidArgument, absl::StatusCode::kOk));
}

TEST_F(GenerationServiceTest, TheDeadlineOfTheCallIsTheRequests) {
  grpc::ClientContext context;
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
  context.set_deadline(deadline);
  const auto reader = stub_->Generate(&context, Request());
  generation_.AwaitStart();
  const auto difference = generation_.input.deadline - deadline;
  EXPECT_LT(std::chrono::abs(difference), std::chrono::seconds(1));
  context.TryCancel();
  generation_.AwaitDestroyed(1);
}

TEST_F(GenerationServiceTest, ShuttingTheServerDownCancelsEverything) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Request());
  generation_.AwaitStart();
  server_->Shutdown(std::chrono::system_clock::now());
  generation_.AwaitDestroyed(1);
}

TEST_F(GenerationServiceTest, TokenizerAndModel) {
  const auto tokenizer = v1::TokenizerService::NewStub(channel_);
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse ids;
  tokenize.set_text("ab");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(tokenizer->Tokenize(&context, tokenize, &ids).ok());
    EXPECT_THAT(ids.ids(), ElementsAre(1, 'a', 'b'));
  }
  tokenize.set_add_special_tokens(false);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(tokenizer->Tokenize(&context, tokenize, &ids).ok());
    EXPECT_THAT(ids.ids(), ElementsAre('a', 'b'));
  }
  v1::DetokenizeRequest detokenize;
  v1::DetokenizeResponse text;
  detokenize.add_ids(1);
  detokenize.add_ids('a');
  detokenize.set_skip_special_tokens(true);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(tokenizer->Detokenize(&context, detokenize, &text).ok());
    EXPECT_EQ(text.text(), "a");
  }
  detokenize.add_ids(256);
  {
    grpc::ClientContext context;
    EXPECT_EQ(tokenizer->Detokenize(&context, detokenize, &text).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(v1::ModelService::NewStub(channel_)->ListModels(&context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).id(), "demo");
  EXPECT_EQ(models.models(0).selection_preset(), "depth");
  EXPECT_EQ(models.models(0).max_context_tokens(), 64u);
}

TEST(GenerateRequestTest, TheThreeKindsOfInput) {
  const ByteCodec codec;
  v1::GenerateRequest request;
  EXPECT_THAT(std::string(ParseGenerateRequest(request, Model(), codec).status().message()), HasSubstr("input"));
  request.set_text("a");
  EXPECT_THAT(ParseGenerateRequest(request, Model(), codec)->prompt_token_ids, ElementsAre(1, 'a'));
  request.set_text("\xff");
  EXPECT_THAT(std::string(ParseGenerateRequest(request, Model(), codec).status().message()), HasSubstr("text: "));
  request.mutable_token_ids()->add_ids(7);
  EXPECT_THAT(ParseGenerateRequest(request, Model(), codec)->prompt_token_ids, ElementsAre(7));
  request.mutable_token_ids()->add_ids(256);
  EXPECT_FALSE(ParseGenerateRequest(request, Model(), codec).ok());
  request.mutable_messages();
  EXPECT_THAT(std::string(ParseGenerateRequest(request, Model(), codec).status().message()), HasSubstr("messages"));
  v1::Message* message = request.mutable_messages()->add_messages();
  message->set_role("u");
  message->set_content("x");
  const auto input = ParseGenerateRequest(request, Model(), codec);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_THAT(input->prompt_token_ids, ElementsAre('u', ':', 'x', ';'));
  EXPECT_EQ(input->max_tokens, 60u);
  EXPECT_EQ(input->n, 1u);
}

}  // namespace
}  // namespace winnow
