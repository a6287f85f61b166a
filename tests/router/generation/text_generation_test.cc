#include "router/generation/text_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

namespace winnow {
namespace {

using ::testing::ElementsAre;

// Each id is a letter, 'a' + id, but for 99, which holds back what comes with the next one.
class LetterDecoder : public TextDecoder {
 public:
  std::string Push(uint32_t id) override {
    if (id == 99) {
      held_ += "~";
      return "";
    }
    return std::exchange(held_, "") + static_cast<char>('a' + id);
  }
  std::string Flush() override { return std::exchange(held_, ""); }

 private:
  std::string held_;
};
class LetterDecoders : public TextDecoderFactory {
 public:
  std::unique_ptr<TextDecoder> NewDecoder(const TextDecoding&) const override {
    return std::make_unique<LetterDecoder>();
  }
};

// Streams whose events the test sends itself.
class ScriptedGenerator : public TokenGenerator {
 public:
  struct Stream : TokenStream {
    explicit Stream(ScriptedGenerator* o) : owner(o) {}
    ~Stream() override {
      --owner->open;
      owner->leftovers.push_back(left);
    }
    void SetLeftovers(Leftovers leftovers) override { left = leftovers; }
    Leftovers left = Leftovers::kFree;
    ScriptedGenerator* owner;
  };
  absl::StatusOr<std::unique_ptr<TokenStream>> Start(TokenRequest request, TokenObserver* observer) override {
    if (requests.size() == refuse_from) return absl::ResourceExhaustedError("queue is full");
    requests.push_back(std::move(request));
    observers.push_back(observer);
    if (on_start) on_start(observer);
    ++open;
    return std::make_unique<Stream>(this);
  }
  void Tokens(size_t i, uint32_t first_index, const std::vector<uint32_t>& ids) {
    std::vector<v1::Token> tokens(ids.size());
    for (size_t k = 0; k < ids.size(); ++k) tokens[k].set_id(ids[k]);
    observers[i]->OnTokens(first_index, tokens);
  }
  void Finish(size_t i, v1::FinishReason reason = v1::FINISH_REASON_LENGTH, uint32_t steps = 0) {
    v1::SelectionStats stats;
    stats.set_decode_steps(steps);
    observers[i]->OnFinished(reason, stats);
  }

  size_t refuse_from = SIZE_MAX;
  std::function<void(TokenObserver*)> on_start;
  void Free(const std::string& resume_key, const std::string&) override { freed.push_back(resume_key); }

  std::vector<Leftovers> leftovers;  // of streams that are gone
  std::vector<std::string> freed;
  std::vector<TokenRequest> requests;
  std::vector<TokenObserver*> observers;
  std::atomic<int> open{0};
};

struct Recorder : GenerationObserver {
  void OnPromptProgress(const PromptProgress& progress) override {
    EXPECT_TRUE(ids.empty());
    computed_prompt_tokens.push_back(progress.computed_tokens);
    prompt_tokens = progress.prompt_tokens;
  }
  void OnDelta(const TextDelta& delta) override {
    EXPECT_FALSE(ended);
    EXPECT_EQ(delta.first_index, ids[delta.output_index].size());
    for (const v1::Token& token : delta.tokens) ids[delta.output_index].push_back(token.id());
    text[delta.output_index] += delta.text;
    if (on_delta) on_delta();
  }
  void OnOutputEnd(const OutputEnd& end) override {
    EXPECT_FALSE(ended);
    EXPECT_FALSE(ends.contains(end.output_index));
    ends[end.output_index] = end;
  }
  void OnDone(const GenerationUsage& u) override {
    EXPECT_FALSE(ended);
    ended = true;
    usage = u;
  }
  void OnFailed(const absl::Status& s) override {
    EXPECT_FALSE(ended);
    ended = true;
    status = s;
  }
  std::vector<uint32_t> computed_prompt_tokens;
  uint32_t prompt_tokens = 0;
  std::map<uint32_t, std::vector<uint32_t>> ids;
  std::map<uint32_t, std::string> text;
  std::map<uint32_t, OutputEnd> ends;
  std::function<void()> on_delta;
  bool ended = false;
  GenerationUsage usage;
  absl::Status status;
};

class TextGenerationTest : public ::testing::Test {
 protected:
  static GenerationInput Input(uint32_t n = 1) {
    GenerationInput input;
    input.prompt_token_ids = {1, 2, 3};
    input.n = n;
    input.max_tokens = 100;
    return input;
  }
  std::unique_ptr<GenerationHandle> Start(GenerationInput input) {
    auto handle = generation_.Start(std::move(input), &recorder_);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return handle.ok() ? *std::move(handle) : nullptr;
  }

  ScriptedGenerator generator_;
  LetterDecoders decoders_;
  TimerQueue timers_;
  std::vector<RequestRecord> records_;
  TextGeneration generation_{{.eos_token_ids = {25},
                              .head_profile = nullptr,
                              .tracing = {},
                              .on_end = [this](const RequestRecord& record) { records_.push_back(record); }},
                             &generator_,
                             &decoders_,
                             &timers_};
  Recorder recorder_;
};

TEST_F(TextGenerationTest, TurnsTokensIntoText) {
  GenerationInput input = Input();
  input.sampling.set_temperature(0.5f);
  input.stop_token_ids = {7};
  input.top_logprobs = 3;
  auto handle = Start(input);
  ASSERT_EQ(generator_.requests.size(), 1u);
  const TokenRequest& request = generator_.requests[0];
  EXPECT_THAT(request.prompt_token_ids, ElementsAre(1, 2, 3));
  EXPECT_TRUE(request.sampling.has_seed());
  EXPECT_EQ(request.sampling.temperature(), 0.5f);
  EXPECT_EQ(request.stopping.max_tokens(), 100u);
  EXPECT_THAT(request.stopping.stop_token_ids(), ElementsAre(7));
  EXPECT_EQ(request.top_logprobs, 3u);

  generator_.Tokens(0, 0, {0, 1});
  EXPECT_EQ(recorder_.text[0], "ab");
  generator_.Tokens(0, 2, {99});
  EXPECT_EQ(recorder_.text[0], "ab");
  generator_.Tokens(0, 3, {2, 99});
  EXPECT_EQ(recorder_.text[0], "ab~c");
  generator_.Finish(0, v1::FINISH_REASON_LENGTH, 5);
  EXPECT_EQ(recorder_.text[0], "ab~c~");
  EXPECT_THAT(recorder_.ids[0], ElementsAre(0, 1, 99, 2, 99));
  EXPECT_EQ(recorder_.ends[0].reason, v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(recorder_.ends[0].stats.value().decode_steps(), 5u);
  EXPECT_TRUE(recorder_.ended);
  EXPECT_EQ(recorder_.usage.prompt_tokens, 3u);
  EXPECT_EQ(recorder_.usage.completion_tokens, 5u);
  EXPECT_EQ(generator_.open, 0);
}

TEST_F(TextGenerationTest, HearsHowFarThePromptIsOfOneOfItsSamples) {
  GenerationInput input = Input(2);
  input.prompt_progress = true;
  auto handle = Start(input);
  EXPECT_TRUE(generator_.requests[0].prompt_progress);
  EXPECT_FALSE(generator_.requests[1].prompt_progress);
  generator_.observers[0]->OnPromptProgress(1, 0);
  generator_.observers[0]->OnPromptProgress(2, 0);
  EXPECT_THAT(recorder_.computed_prompt_tokens, ElementsAre(1, 2));
  EXPECT_EQ(recorder_.prompt_tokens, 3u);
}

TEST_F(TextGenerationTest, EachRequestIsRecordedOnceWhenItHasEnded) {
  GenerationInput input = Input(2);
  input.request_id = "mine";
  auto handle = Start(input);
  generator_.Tokens(0, 0, {0, 1});
  generator_.Tokens(1, 0, {2});
  generator_.Finish(1);
  EXPECT_TRUE(records_.empty()) << "an output is still open";
  generator_.Finish(0);
  handle = nullptr;
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].request_id, "mine");
  EXPECT_EQ(records_[0].prompt_tokens, 3u);
  EXPECT_EQ(records_[0].completion_tokens, 3u);
  EXPECT_EQ(records_[0].outputs, 2u);
  EXPECT_EQ(records_[0].ended, "length");
  ASSERT_TRUE(records_[0].first_token.has_value());
  EXPECT_GE(records_[0].duration, *records_[0].first_token);
}

TEST_F(TextGenerationTest, RecordsSayHowARequestEnded) {
  auto given_up = Start(Input());
  given_up = nullptr;
  auto failed = Start(Input());
  generator_.observers[1]->OnFailed(absl::UnavailableError("no rank"));
  generator_.refuse_from = 2;
  EXPECT_FALSE(generation_.Start(Input(), &recorder_).ok());
  ASSERT_EQ(records_.size(), 3u);
  EXPECT_EQ(records_[0].ended, "abort");
  EXPECT_FALSE(records_[0].first_token.has_value());
  EXPECT_EQ(records_[1].ended, "UNAVAILABLE");
  EXPECT_EQ(records_[2].ended, "RESOURCE_EXHAUSTED");
}

TEST_F(TextGenerationTest, WhatEndsASequenceIsSilent) {
  GenerationInput input = Input(2);
  input.stop_token_ids = {7};
  auto handle = Start(input);
  generator_.Tokens(0, 0, {0, 25});
  generator_.Finish(0, v1::FINISH_REASON_STOP);
  generator_.Tokens(1, 0, {1, 7});
  generator_.Finish(1, v1::FINISH_REASON_STOP);
  EXPECT_EQ(recorder_.text[0], "a");
  EXPECT_THAT(recorder_.ids[0], ElementsAre(0, 25));
  EXPECT_EQ(recorder_.text[1], "b");
  EXPECT_FALSE(recorder_.ends[0].stop_match.has_value());
  EXPECT_EQ(recorder_.usage.completion_tokens, 4u);
}

TEST_F(TextGenerationTest, IgnoredEosIsAnOrdinaryToken) {
  GenerationInput input = Input();
  input.ignore_eos = true;
  auto handle = Start(input);
  EXPECT_TRUE(generator_.requests[0].stopping.ignore_eos());
  generator_.Tokens(0, 0, {0, 25, 1});
  EXPECT_EQ(recorder_.text[0], "azb");
}

TEST_F(TextGenerationTest, AStopStringEndsTheOutputAndCancelsItsStream) {
  GenerationInput input = Input(2);
  input.stop = {"cd"};
  auto handle = Start(input);
  generator_.Tokens(0, 0, {0, 2});
  EXPECT_EQ(recorder_.text[0], "a");
  generator_.Tokens(0, 2, {3, 4, 5});
  EXPECT_EQ(recorder_.text[0], "a");
  // The token that completed the stop string is the last that counts.
  EXPECT_THAT(recorder_.ids[0], ElementsAre(0, 2, 3));
  EXPECT_EQ(recorder_.ends[0].reason, v1::FINISH_REASON_STOP);
  EXPECT_EQ(recorder_.ends[0].stop_match, "cd");
  EXPECT_FALSE(recorder_.ends[0].stats.has_value()) << "the rank has not ended the sequence";
  EXPECT_EQ(generator_.open, 1);
  EXPECT_FALSE(recorder_.ended);
  generator_.Tokens(1, 0, {2});
  generator_.Finish(1);
  EXPECT_EQ(recorder_.text[1], "c");
  EXPECT_TRUE(recorder_.ended);
  EXPECT_EQ(recorder_.usage.completion_tokens, 4u);
}

TEST_F(TextGenerationTest, HeldBackTextMayCompleteAStopStringAtTheEnd) {
  GenerationInput input = Input();
  input.stop = {"b~"};
  auto handle = Start(input);
  generator_.Tokens(0, 0, {0, 1, 99});
  generator_.Finish(0, v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(recorder_.text[0], "a");
  EXPECT_EQ(recorder_.ends[0].reason, v1::FINISH_REASON_STOP);
  EXPECT_EQ(recorder_.ends[0].stop_match, "b~");
}

TEST_F(TextGenerationTest, SamplesShareSeedAndGroupAndDifferInIndex) {
  auto handle = Start(Input(3));
  ASSERT_EQ(generator_.requests.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(generator_.requests[i].sampling.sample_index(), i);
    EXPECT_EQ(generator_.requests[i].sampling.seed(), generator_.requests[0].sampling.seed());
    EXPECT_EQ(generator_.requests[i].group, generator_.requests[0].group);
    EXPECT_NE(generator_.requests[i].group, 0u);
  }
  auto other = Start(Input(2));
  EXPECT_NE(generator_.requests[3].group, generator_.requests[0].group);
  EXPECT_NE(generator_.requests[3].sampling.seed(), generator_.requests[0].sampling.seed());
  GenerationInput seeded = Input();
  seeded.sampling.set_seed(77);
  auto third = Start(seeded);
  EXPECT_EQ(generator_.requests[5].sampling.seed(), 77u);
  EXPECT_EQ(generator_.requests[5].group, 0u);
}

TEST_F(TextGenerationTest, AForkBeginsWithTheTokensSoFarAndTellsWhatIsNew) {
  GenerationInput input = Input(2);
  input.caller.tenant = "somebody";
  auto handle = Start(input);
  EXPECT_EQ(generator_.requests[0].group_size, 2u);
  generator_.Tokens(1, 0, {0, 1, 2});
  Recorder fork;
  fork.ids[0] = {0, 1, 2};  // what it does not tell again
  ForkInput of_output;
  of_output.output_index = 1;
  EXPECT_TRUE(absl::IsNotFound(handle->Fork(of_output, &fork).status())) << "of another tenant";
  of_output.caller.tenant = "somebody";
  of_output.max_tokens = 3;
  EXPECT_TRUE(absl::IsInvalidArgument(handle->Fork(of_output, &fork).status())) << "no token is left";
  of_output.max_tokens = 5;
  absl::StatusOr<GenerationFork> forked = handle->Fork(of_output, &fork);
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(forked->forked_tokens, 3u);
  EXPECT_EQ(forked->prompt_tokens, 3u);
  const TokenRequest& request = generator_.requests[2];
  EXPECT_EQ(request.fork->token_ids, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(request.sampling.sample_index(), 2u) << "the first one that is free";
  EXPECT_EQ(request.sampling.seed(), generator_.requests[0].sampling.seed());
  EXPECT_EQ(request.stopping.max_tokens(), 5u);
  EXPECT_EQ(request.group, 0u);

  handle.reset();  // independent of its source
  generator_.Tokens(2, 3, {3, 4});
  generator_.Finish(2);
  EXPECT_EQ(fork.ids[0], (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(fork.text[0], "de");
  EXPECT_EQ(fork.usage.completion_tokens, 2u);
}

TEST_F(TextGenerationTest, WhatHasEndedCannotBeForked) {
  auto handle = Start(Input(2));
  generator_.Finish(0);
  Recorder fork;
  EXPECT_TRUE(absl::IsNotFound(handle->Fork(ForkInput(), &fork).status()));
  ForkInput of_output;
  of_output.output_index = 2;
  EXPECT_TRUE(absl::IsNotFound(handle->Fork(of_output, &fork).status()));
}

TEST_F(TextGenerationTest, OneFailureEndsTheGeneration) {
  auto handle = Start(Input(2));
  generator_.Tokens(1, 0, {0});
  generator_.observers[0]->OnFailed(absl::DeadlineExceededError("late"));
  EXPECT_EQ(recorder_.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(generator_.open, 0);
}

TEST_F(TextGenerationTest, ARefusedSampleRefusesAll) {
  generator_.refuse_from = 2;
  const auto handle = generation_.Start(Input(3), &recorder_);
  EXPECT_EQ(handle.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(generator_.open, 0);
  EXPECT_FALSE(recorder_.ended);
}

TEST_F(TextGenerationTest, DestroyingTheHandleCancelsAll) {
  auto handle = Start(Input(2));
  generator_.Tokens(0, 0, {0});
  handle.reset();
  EXPECT_EQ(generator_.open, 0);
  EXPECT_EQ(recorder_.text[0], "a");
  EXPECT_FALSE(recorder_.ended);
}

TEST_F(TextGenerationTest, TheHandleMayBeDestroyedInACallback) {
  auto handle = Start(Input(2));
  recorder_.on_delta = [&] { handle.reset(); };
  generator_.Tokens(0, 0, {0});
  EXPECT_EQ(generator_.open, 0);
  EXPECT_EQ(recorder_.text[0], "a");
}

TEST_F(TextGenerationTest, EventsDuringStartComeOnAnotherThread) {
  generator_.on_start = [](TokenObserver* observer) {
    observer->OnTokens(0, std::vector<v1::Token>(1));
    observer->OnFinished(v1::FINISH_REASON_LENGTH, {});
  };
  struct Waiting : Recorder {
    void OnDone(const GenerationUsage& u) override {
      std::lock_guard lock(mutex);
      Recorder::OnDone(u);
      thread = std::this_thread::get_id();
      changed.notify_all();
    }
    std::mutex mutex;
    std::condition_variable changed;
    std::thread::id thread;
  } recorder;
  auto handle = generation_.Start(Input(), &recorder);
  ASSERT_TRUE(handle.ok());
  std::unique_lock lock(recorder.mutex);
  recorder.changed.wait(lock, [&] { return recorder.ended; });
  EXPECT_NE(recorder.thread, std::this_thread::get_id());
  EXPECT_EQ(recorder.text[0], "a");
}

class ResumableGenerationTest : public TextGenerationTest {
 protected:
  static GenerationInput Resumable() {
    GenerationInput input = Input(2);
    input.resumable = true;
    input.stop = {"zz"};
    input.deadline = std::chrono::system_clock::now() + std::chrono::minutes(10);
    return input;
  }
};

TEST_F(ResumableGenerationTest, GivesATokenWithWhichTheSameStreamsAreAskedForAgain) {
  auto handle = Start(Resumable());
  const std::string token = handle->resume_token();
  ASSERT_FALSE(token.empty());
  handle->Leave();
  handle = nullptr;
  EXPECT_THAT(generator_.leftovers, ElementsAre(Leftovers::kKeepComputing, Leftovers::kKeepComputing));

  Recorder again;
  GenerationInput input = Resumable();
  input.resume = {.token = token, .next_index = {2}};
  auto resumed = generation_.Start(input, &again);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ((*resumed)->resume_token(), token);
  for (const size_t output : {0, 1}) {
    const TokenRequest& first = generator_.requests[output];
    const TokenRequest& second = generator_.requests[2 + output];
    EXPECT_FALSE(first.resume_key.empty());
    EXPECT_FALSE(first.resume.has_value());
    EXPECT_EQ(second.resume_key, first.resume_key);
    EXPECT_EQ(second.resume->next_index, output == 0 ? 2u : 0u);
    EXPECT_EQ(second.sampling.seed(), first.sampling.seed());
    EXPECT_EQ(second.sampling.sample_index(), output);
    EXPECT_EQ(second.group, 0u);
  }
  EXPECT_NE(generator_.requests[0].resume_key, generator_.requests[1].resume_key);
  EXPECT_TRUE(generation_.Abort(token, Caller{}).ok());
  EXPECT_THAT(generator_.freed, ElementsAre(generator_.requests[0].resume_key, generator_.requests[1].resume_key));
  EXPECT_FALSE(generation_.Abort(token, Caller{.tenant = "other"}).ok());
}

// Front ends leave out what comes before: a piece ends there however the tokens come.
TEST_F(ResumableGenerationTest, CutsWhatComesAgainWhereTheClientIs) {
  const std::string token = Start(Resumable())->resume_token();
  for (const std::vector<size_t>& cuts : {std::vector<size_t>{5}, {1, 4}, {2, 3}, {3, 2}}) {
    std::vector<std::pair<uint32_t, size_t>> pieces;
    struct Pieces : Recorder {
      void OnDelta(const TextDelta& delta) override {
        Recorder::OnDelta(delta);
        said->emplace_back(delta.first_index, delta.tokens.size());
      }
      std::vector<std::pair<uint32_t, size_t>>* said;
    } recorder;
    recorder.said = &pieces;
    GenerationInput input = Resumable();
    input.resume = {.token = token, .next_index = {2}};
    auto resumed = generation_.Start(input, &recorder);
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    const size_t stream = generator_.requests.size() - 2;
    uint32_t next = 0;
    for (const size_t count : cuts) {
      std::vector<uint32_t> ids;
      for (size_t i = 0; i < count; ++i) ids.push_back(next + static_cast<uint32_t>(i));
      generator_.Tokens(stream, next, ids);
      next += static_cast<uint32_t>(count);
    }
    EXPECT_EQ(recorder.text[0], "abcde");
    for (const auto& [first, count] : pieces) EXPECT_TRUE(first + count <= 2 || first >= 2);
  }
}

}  // namespace
}  // namespace winnow
