// A sequence goes from one engine to another at any point of its life: the tokens are those of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <thread>

#include "common/rpc/grpc_status.h"
#include "common/selection/selection_proto.h"
#include "inference_rank/engine/engine.h"
#include "inference_rank/service/fingerprint.h"
#include "inference_rank/service/submit.h"
#include "model/transformer.h"
#include "tests/inference_rank/served_cache_rank.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using TokenIds = std::vector<uint32_t>;

constexpr uint32_t kPrompt = 230, kTokens = 100;
const TinyModel kModel{.num_layers = 3, .storage = Dtype::kF32};

SelectionSpec SpecOf(Predictor predictor) {
  SelectionSpec spec;
  spec.preset = "test";
  spec.predictor = predictor;
  spec.budget_tokens = predictor == Predictor::kDense ? kUnlimitedBudget : 16;
  spec.recent_tokens = 32;
  return spec;
}

// What a router would hear. From token `slow_from` on it takes its time, so that a sequence is lost before it has
// ended.
class Listener final : public EventSink {
 public:
  struct Heard {
    TokenIds ids;
    bool finished = false;
    std::optional<v1::DispatchResponse::Failed> failed;
    bool over() const { return finished || failed.has_value(); }
  };

  void Send(v1::DispatchResponse event) override {
    std::unique_lock lock(mutex_);
    Heard& heard = heard_[event.request_id()];
    for (const v1::Token& token : event.tokens().tokens()) heard.ids.push_back(token.id());
    heard.finished |= event.has_finished();
    if (event.has_failed()) heard.failed = event.failed();
    changed_.notify_all();
    if (heard.over() || heard.ids.size() < slow_from) return;
    lock.unlock();
    std::this_thread::sleep_for(milliseconds(50));
  }
  Heard Await(uint64_t request_id, const std::function<bool(const Heard&)>& what) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, seconds(60), [&] { return what(heard_[request_id]); });
    EXPECT_TRUE(came) << "request " << request_id << " has " << heard_[request_id].ids.size() << " tokens";
    return heard_[request_id];
  }
  Heard AwaitEnd(uint64_t request_id) {
    return Await(request_id, [](const Heard& heard) { return heard.over(); });
  }
  void AwaitTokens(uint64_t request_id, size_t count) {
    Await(request_id, [&](const Heard& heard) { return heard.ids.size() >= count || heard.over(); });
  }

  std::atomic<size_t> slow_from{SIZE_MAX};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Heard> heard_;
};

class EngineTakeover : public testing::TestWithParam<Predictor> {
 protected:
  struct Rank {
    Rank(const EngineTakeover& test, uint64_t incarnation)
        : executor(test.kernels_.new_executor(1)),
          transformer(test.config_, *test.weights_, test.kernels_, *executor, Dtype::kF32, 512, 1024),
          metrics(test.config_.num_layers),
          grammars(test.Letters(), metrics) {
      SlotPool slots = SlotPool::Create(test.layout_.row_bytes(), kSlotPages).value();
      transformer.set_slot_pool(slots.rows());
      LinkTable::Options links;
      links.identity.set_rank(absl::StrCat("inference-", incarnation));
      links.identity.set_incarnation(incarnation);
      links.fingerprint = InferenceFingerprint("tiny", test.layout_, transformer, "test");
      Engine::Options options;
      options.limits.prefill_chunk_tokens = 64;
      options.limits.prefill.hidden_size = static_cast<uint32_t>(test.config_.hidden_size);
      engine = std::make_unique<Engine>(std::move(options), test.layout_, transformer, std::move(slots),
                                        NewInprocTransport({.incarnation = incarnation}), links, metrics);
      engine->Start();
    }
    std::unique_ptr<Executor> executor;
    Transformer transformer;
    InferenceRankMetrics metrics;
    GrammarCache grammars;
    std::unique_ptr<Engine> engine;
    std::shared_ptr<Listener> listener = std::make_shared<Listener>();
  };
  static constexpr uint32_t kSlotPages = 2048;

  EngineTakeover()
      : config_(WriteAndLoad(directory_.path())),
        layout_(config_.kv_layout(Dtype::kF32)),
        load_executor_(kernels_.new_executor(1)),
        weights_(ModelWeights::Load(Checkpoint::Open(directory_.path()).value(), config_, kernels_,
                                    {.compute_dtype = Dtype::kF32})
                     .value()),
        cache_("cache-0", 90, size_t{64} << 20) {}

  static ModelConfig WriteAndLoad(const std::string& directory) {
    WriteTinyCheckpoint(kModel, directory);
    return LoadModelConfig(directory).value();
  }

  // Each token stands for a letter.
  std::shared_ptr<const TokenTrie> Letters() const {
    std::vector<std::string> letters;
    for (int64_t id = 0; id < config_.vocab_size; ++id) letters.emplace_back(1, static_cast<char>('a' + id % 26));
    return std::make_shared<TokenTrie>(letters, std::vector<uint32_t>());
  }

  std::unique_ptr<Rank> NewRank() { return std::make_unique<Rank>(*this, next_incarnation_++); }

  v1::DispatchRequest::Submit Sample(uint32_t index, uint32_t prompt_seed = 3) const {
    v1::DispatchRequest::Submit submit;
    *submit.add_cache_ranks() = cache_.identity;
    for (uint32_t p = 0; p < kPrompt; ++p) {
      submit.add_prompt_token_ids((p * 7919 + prompt_seed * 104729 + p * p % 31) % config_.vocab_size);
    }
    submit.mutable_sampling()->set_temperature(1.0f);
    submit.mutable_sampling()->set_seed(77);
    submit.mutable_sampling()->set_sample_index(index);
    if (!grammar_.empty()) submit.mutable_sampling()->mutable_constraint()->set_grammar(grammar_);
    submit.mutable_stopping()->set_max_tokens(kTokens);
    submit.mutable_stopping()->set_ignore_eos(true);
    *submit.mutable_selection() = ToProto(SpecOf(GetParam()));
    const auto deadline = std::chrono::system_clock::now() + std::chrono::minutes(5);
    submit.set_deadline_unix_nanos(
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count());
    return submit;
  }
  void Submit(Rank& rank, uint64_t request_id, uint64_t sequence_id, v1::DispatchRequest::Submit submit) {
    submit.set_request_id(request_id);
    submit.set_sequence_id(sequence_id);
    auto sequence = MakeSequence(submit, {.vocab_size = static_cast<uint32_t>(config_.vocab_size),
                                          .max_context_tokens = 512,
                                          .max_budget_tokens = kUnlimitedBudget,
                                          .layout = layout_,
                                          .slot_pages = kSlotPages,
                                          .grammars = &rank.grammars});
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    (*sequence)->sink = rank.listener;
    rank.engine->Submit(*std::move(sequence));
  }
  // As the router sends it after the loss of a rank, with `known` tokens.
  v1::DispatchRequest::Submit Again(uint32_t index, const TokenIds& ids, size_t known) const {
    v1::DispatchRequest::Submit submit = Sample(index);
    submit.set_attach(true);
    submit.mutable_generated_token_ids()->Assign(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(known));
    return submit;
  }
  TokenIds Undisturbed(uint32_t index) {
    const std::unique_ptr<Rank> rank = NewRank();
    Submit(*rank, 1, 1000 + index, Sample(index));
    Listener::Heard heard = rank->listener->AwaitEnd(1);
    EXPECT_TRUE(heard.finished);
    EXPECT_EQ(heard.ids.size(), kTokens);
    heard.ids.resize(kTokens);  // what has failed is compared in vain, and not beyond its end
    return heard.ids;
  }
  // What follows the `known` ids.
  static TokenIds From(const TokenIds& ids, size_t known) {
    return TokenIds(ids.begin() + static_cast<ptrdiff_t>(known), ids.end());
  }

  const TempDir directory_;
  const ModelConfig config_;
  const KvLayout layout_;
  const KernelTable& kernels_ = *CpuKernels("portable").value();
  const std::unique_ptr<Executor> load_executor_;
  const std::unique_ptr<ModelWeights> weights_;
  ServedCacheRank cache_;
  uint64_t next_incarnation_ = 91;
  std::string grammar_;  // of all outputs; empty: they may be anything
};

// The router may know fewer tokens than the rank has drawn: what was on its way to it is lost with the rank.
TEST_P(EngineTakeover, GivesTheTokensOfAnUndisturbedRunHoweverFewAreKnown) {
  const TokenIds expected = Undisturbed(0);
  uint64_t id = 10;
  for (const auto& [drawn, known] :
       {std::pair{3u, 0u}, {1u, 0u}, {3u, 1u}, {3u, 2u}, {3u, 3u}, {30u, 0u}, {30u, 2u}, {30u, 20u}, {30u, 29u}}) {
    SCOPED_TRACE(testing::Message() << drawn << " tokens drawn, " << known << " known");
    ++id;
    std::unique_ptr<Rank> first = NewRank(), second = NewRank();
    first->listener->slow_from = drawn;
    Submit(*first, id, id, Sample(0));
    first->listener->AwaitTokens(id, drawn);
    first->engine->Stop();
    Submit(*second, id, id, Again(0, expected, known));
    const Listener::Heard heard = second->listener->AwaitEnd(id);
    EXPECT_TRUE(heard.finished) << (heard.failed ? heard.failed->message() : "");
    EXPECT_EQ(heard.ids, From(expected, known));
  }
}

TEST_P(EngineTakeover, GoesOnInTheMiddleOfAGrammar) {
  const TokenIds free = Undisturbed(0);
  grammar_ = "root ::= ([a-m]{1,3} [n-z] ending?)*\nending ::= \"xy\" ending? \"z\"";
  const TokenIds expected = Undisturbed(0);
  EXPECT_NE(expected, free);
  int first_half = 0;
  for (const uint32_t token : expected) {
    first_half = token % 26 < 13 ? first_half + 1 : 0;
    ASSERT_LE(first_half, 3);
  }
  uint64_t id = 10;
  for (const auto& [drawn, known] : {std::pair{1u, 0u}, {3u, 1u}, {30u, 2u}, {30u, 29u}}) {
    SCOPED_TRACE(testing::Message() << drawn << " tokens drawn, " << known << " known");
    ++id;
    std::unique_ptr<Rank> first = NewRank(), second = NewRank();
    first->listener->slow_from = drawn;
    Submit(*first, id, id, Sample(0));
    first->listener->AwaitTokens(id, drawn);
    first->engine->Stop();
    Submit(*second, id, id, Again(0, expected, known));
    const Listener::Heard heard = second->listener->AwaitEnd(id);
    EXPECT_TRUE(heard.finished) << (heard.failed ? heard.failed->message() : "");
    EXPECT_EQ(heard.ids, From(expected, known));
  }
}

// Without a token that ends it, and whether or not the word of it was lost.
TEST_P(EngineTakeover, AnOutputEndsWhereItsGrammarDoes) {
  grammar_ = "root ::= [a-z]{20}";
  const std::unique_ptr<Rank> rank = NewRank();
  Submit(*rank, 1, 1, Sample(0));
  const Listener::Heard heard = rank->listener->AwaitEnd(1);
  EXPECT_TRUE(heard.finished);
  ASSERT_EQ(heard.ids.size(), 20u);
  Submit(*rank, 2, 2, Sample(0));
  rank->listener->slow_from = 10;
  rank->listener->AwaitTokens(2, 10);
  Submit(*rank, 3, 2, Again(0, heard.ids, 20));
  const Listener::Heard again = rank->listener->AwaitEnd(3);
  EXPECT_TRUE(again.finished || (again.failed && again.failed->retryable()));
  EXPECT_TRUE(again.ids.empty());
}

// Its last token has come, and the word that it is the last has not.
TEST_P(EngineTakeover, AnAnswerOfWhichAllTokensAreKnownEndsAtOnce) {
  const TokenIds expected = Undisturbed(0);
  uint64_t id = 10;
  for (const bool attach : {true, false}) {
    for (const size_t known : {size_t{kTokens}, size_t{7}}) {
      SCOPED_TRACE(testing::Message() << known << " tokens known, attached " << attach);
      ++id;
      std::unique_ptr<Rank> first = NewRank(), second = NewRank();
      first->listener->slow_from = known - 1;
      Submit(*first, id, id, Sample(0));
      first->listener->AwaitTokens(id, known - 1);
      first->engine->Stop();
      v1::DispatchRequest::Submit again = Again(0, expected, known);
      again.set_attach(attach);
      // A token that ends the answer, where it is no longer than that.
      if (known < kTokens) again.mutable_stopping()->add_stop_token_ids(expected[known - 1]);
      Submit(*second, id, attach ? id : id + 1000, again);
      const Listener::Heard heard = second->listener->AwaitEnd(id);
      EXPECT_TRUE(heard.finished) << (heard.failed ? heard.failed->message() : "");
      EXPECT_TRUE(heard.ids.empty());
    }
  }
}

TEST_P(EngineTakeover, GivesTheTokensOfAnUndisturbedRunFromTheMiddleOfAPrompt) {
  const TokenIds expected = Undisturbed(0);
  uint64_t kept = 0;
  for (const uint64_t pieces : {1u, 4u, 8u, 12u}) {
    std::unique_ptr<Rank> first = NewRank(), second = NewRank();
    first->listener->slow_from = 1;
    Submit(*first, pieces, pieces, Sample(0));
    const InferenceRankMetrics& metrics = first->metrics;
    while (metrics.prefill_chunks < pieces && metrics.generation_tokens == 0) std::this_thread::yield();
    first->engine->Stop();
    Submit(*second, pieces, pieces, Again(0, expected, 0));
    Listener::Heard heard = second->listener->AwaitEnd(pieces);
    if (heard.failed && heard.failed->sequence_lost()) continue;  // it had not been opened yet
    EXPECT_EQ(heard.ids, expected) << pieces;
    const InferenceRankMetrics& seconds = second->metrics;
    EXPECT_EQ(seconds.kept_prompt_tokens + seconds.prompt_tokens, kPrompt);
    EXPECT_EQ(seconds.cached_prompt_tokens, 0u);
    kept += seconds.kept_prompt_tokens;
  }
  EXPECT_GE(kept, 64u) << "no chunk that the first rank had computed was of use";
}

TEST_P(EngineTakeover, SamplesOfOnePromptKeepTheirTokens) {
  constexpr uint32_t kSamples = 4;
  std::vector<TokenIds> expected;
  for (uint32_t i = 0; i < kSamples; ++i) expected.push_back(Undisturbed(i));
  EXPECT_NE(expected[0], expected[1]);
  uint64_t base = 10;
  for (const uint32_t known : {0u, 1u, 2u, 9u}) {
    SCOPED_TRACE(testing::Message() << known << " tokens known");
    base += 10;
    std::unique_ptr<Rank> first = NewRank(), second = NewRank();
    first->listener->slow_from = known + 2;
    for (uint32_t i = 0; i < kSamples; ++i) {
      v1::DispatchRequest::Submit submit = Sample(i);
      if (i == 0) submit.set_followers(kSamples - 1);
      if (i > 0) submit.set_fork_sequence_id(base);
      Submit(*first, base + i, base + i, submit);
    }
    for (uint32_t i = 0; i < kSamples; ++i) first->listener->AwaitTokens(base + i, known + 2);
    first->engine->Stop();
    for (uint32_t i = 0; i < kSamples; ++i) Submit(*second, base + i, base + i, Again(i, expected[i], known));
    for (uint32_t i = 0; i < kSamples; ++i) {
      const Listener::Heard heard = second->listener->AwaitEnd(base + i);
      EXPECT_TRUE(heard.finished) << (heard.failed ? heard.failed->message() : "");
      EXPECT_EQ(heard.ids, From(expected[i], known)) << "sample " << i;
    }
  }
}

// To a router whose stream was cut the rank is another one, though it still runs what it was given before.
TEST_P(EngineTakeover, AnotherAttemptOnTheSameRankEndsTheFirst) {
  const TokenIds expected = Undisturbed(0);
  uint64_t id = 10;
  for (const uint32_t known : {0u, 2u}) {
    ++id;
    const std::unique_ptr<Rank> rank = NewRank();
    rank->listener->slow_from = known + 2;
    Submit(*rank, 2 * id, id, Sample(0));
    rank->listener->AwaitTokens(2 * id, known + 2);
    rank->listener->slow_from = SIZE_MAX;
    Submit(*rank, 2 * id + 1, id, Again(0, expected, known));
    const Listener::Heard heard = rank->listener->AwaitEnd(2 * id + 1);
    EXPECT_TRUE(heard.finished) << (heard.failed ? heard.failed->message() : "");
    EXPECT_EQ(heard.ids, From(expected, known));
    const Listener::Heard first = rank->listener->AwaitEnd(2 * id);
    ASSERT_TRUE(first.failed.has_value()) << "the router may wait for it: an earlier attempt can come later";
    EXPECT_TRUE(first.failed->retryable());
    EXPECT_FALSE(first.failed->sequence_lost());
  }
}

// Attachments may overtake each other on their way to the cache rank: whoever has lost the sequence to an older attempt
// is to be asked again.
TEST_P(EngineTakeover, ARankThatLosesTheSequenceToAnotherSaysThatItMayBeTriedAgain) {
  const TokenIds expected = Undisturbed(0);
  const std::unique_ptr<Rank> first = NewRank(), second = NewRank();
  first->listener->slow_from = 2;
  Submit(*first, 5, 5, Sample(0));
  first->listener->AwaitTokens(5, 2);
  Submit(*second, 5, 5, Again(0, expected, 2));
  const Listener::Heard fenced = first->listener->AwaitEnd(5);
  ASSERT_TRUE(fenced.failed.has_value());
  EXPECT_TRUE(fenced.failed->retryable());
  EXPECT_FALSE(fenced.failed->sequence_lost());
  EXPECT_EQ(second->listener->AwaitEnd(5).ids, From(expected, 2));
}

// A call that opened the sequence, and whose undoing is still on its way, has its number.
TEST_P(EngineTakeover, ANumberThatIsTakenMeansToBeginAnewWithAnother) {
  const TokenIds expected = Undisturbed(0);
  const std::unique_ptr<Rank> first = NewRank(), second = NewRank();
  first->listener->slow_from = 2;
  Submit(*first, 5, 5, Sample(0));
  first->listener->AwaitTokens(5, 2);
  Submit(*second, 6, 5, Sample(0));
  const Listener::Heard refused = second->listener->AwaitEnd(6);
  ASSERT_TRUE(refused.failed.has_value());
  EXPECT_TRUE(refused.failed->retryable());
  EXPECT_TRUE(refused.failed->sequence_lost()) << "whoever tries again takes another number";
  Submit(*second, 7, 6, Sample(0));
  EXPECT_EQ(second->listener->AwaitEnd(7).ids, expected);
  first->listener->slow_from = SIZE_MAX;
  EXPECT_EQ(first->listener->AwaitEnd(5).ids, expected) << "the one that has the number goes on";
}

// A cache rank that has attached a sequence, and is gone before the other side hears of it, and before any row has
// left.
class GoneAtAttach final : public v1::CacheService::Service {
 public:
  explicit GoneAtAttach(CacheRank* rank) : rank_(rank) {}
  grpc::Status AttachSequence(grpc::ServerContext*, const v1::AttachSequenceRequest* request,
                              v1::AttachSequenceResponse* response) override {
    rank_->Stop();
    std::this_thread::sleep_for(milliseconds(300));  // the other side notices
    response->set_attach_epoch(2);
    response->set_restart_position(request->max_restart_position());
    return grpc::Status::OK;
  }

 private:
  CacheRank* const rank_;
};

// Nothing would come for it, and nothing would tell it so.
TEST_P(EngineTakeover, ASequenceWhoseLinkEndsWhileItIsAttachedFails) {
  const TokenIds expected = Undisturbed(0);
  std::unique_ptr<Rank> first = NewRank(), second = NewRank();
  first->listener->slow_from = 2;
  Submit(*first, 5, 5, Sample(0));
  first->listener->AwaitTokens(5, 2);
  first->engine->Stop();
  GoneAtAttach gone(cache_.rank.get());
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&gone);
  builder.RegisterService(cache_.rank->services()[1]);  // Exchange
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  v1::DispatchRequest::Submit submit = Again(0, expected, 2);
  submit.mutable_cache_ranks(0)->set_address(absl::StrCat("127.0.0.1:", port));
  Submit(*second, 5, 5, submit);
  const Listener::Heard heard = second->listener->AwaitEnd(5);
  ASSERT_TRUE(heard.failed.has_value());
  EXPECT_TRUE(heard.failed->retryable());
  EXPECT_FALSE(heard.failed->sequence_lost());
  server->Shutdown();
}

// A cache rank on which another rank attaches the sequence before the answer to AttachSequence is heard, and before all
// rows have left.
class OvertakenAtAttach final : public v1::CacheService::Service {
 public:
  explicit OvertakenAtAttach(CacheRank* rank) : rank_(rank) {}
  grpc::Status AttachSequence(grpc::ServerContext*, const v1::AttachSequenceRequest* request,
                              v1::AttachSequenceResponse* response) override {
    const auto attached = rank_->Call(
        std::chrono::system_clock::now() + seconds(10),
        [link = static_cast<uint32_t>(request->channel_id()), id = request->sequence_id(),
         restart = request->max_restart_position()](DataPlane& data_plane) -> absl::StatusOr<DataPlane::Attached> {
          const absl::StatusOr<DataPlane::Attached> attached = data_plane.AttachSequence(link, id, restart);
          const absl::StatusOr<DataPlane::Attached> other = data_plane.AttachSequence(link - 1, id, restart);
          return other.ok() ? attached : other.status();
        });
    if (!attached.ok()) return ToGrpc(attached.status());
    std::this_thread::sleep_for(milliseconds(300));  // the other side hears that it is fenced
    response->set_attach_epoch(attached->attach_epoch);
    response->set_restart_position(attached->restart_position);
    return grpc::Status::OK;
  }

 private:
  CacheRank* const rank_;
};

// It would wait for rows that are another rank's until its deadline.
TEST_P(EngineTakeover, ASequenceThatIsAttachedElsewhereBeforeItHearsOfItsOwnAttachmentFails) {
  const TokenIds expected = Undisturbed(0);
  std::unique_ptr<Rank> first = NewRank(), second = NewRank();
  first->listener->slow_from = 2;
  Submit(*first, 5, 5, Sample(0));
  first->listener->AwaitTokens(5, 2);
  OvertakenAtAttach overtaken(cache_.rank.get());
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&overtaken);
  builder.RegisterService(cache_.rank->services()[1]);  // Exchange
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  v1::DispatchRequest::Submit submit = Again(0, expected, 2);
  submit.mutable_cache_ranks(0)->set_address(absl::StrCat("127.0.0.1:", port));
  Submit(*second, 5, 5, submit);
  const Listener::Heard heard = second->listener->AwaitEnd(5);
  ASSERT_TRUE(heard.failed.has_value());
  EXPECT_THAT(heard.failed->message(), testing::HasSubstr("another rank has attached"));
  EXPECT_TRUE(heard.failed->retryable());
  EXPECT_FALSE(heard.failed->sequence_lost());
  first->engine->Stop();
  second->engine->Stop();
  server->Shutdown();
}

std::string NameOf(const testing::TestParamInfo<Predictor>& info) {
  switch (info.param) {
    case Predictor::kDense:
      return "Dense";
    case Predictor::kExact:
      return "Exact";
    case Predictor::kLast:
      return "Last";
    case Predictor::kTemporal:
      return "Temporal";
    default:
      return "Depth";
  }
}
INSTANTIATE_TEST_SUITE_P(Predictors, EngineTakeover,
                         testing::Values(Predictor::kDense, Predictor::kExact, Predictor::kLast, Predictor::kTemporal,
                                         Predictor::kDepth),
                         NameOf);

}  // namespace
}  // namespace winnow::test
