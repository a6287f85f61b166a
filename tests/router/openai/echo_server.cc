// A server to try the front end by hand and to load it: answers every prompt with its own bytes, over and over, up to
// max_tokens.
//
//   echo_server <port> <milliseconds between tokens>

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "router/http/http_server.h"
#include "router/openai/json/api_error.h"
#include "router/openai/openai_service.h"
#include "tests/router/openai/fake_text_codec.h"

namespace winnow {
namespace {

// One thread steps all generations, a token each per round.
class EchoGeneration : public Generation {
 public:
  explicit EchoGeneration(std::chrono::milliseconds step) : step_(step), thread_([this] { Run(); }) {}
  ~EchoGeneration() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  absl::StatusOr<std::unique_ptr<GenerationHandle>> Start(GenerationInput input,
                                                          GenerationObserver* observer) override {
    std::lock_guard lock(mutex_);
    const uint64_t key = next_key_++;
    active_.emplace(key, Active{std::move(input), observer, 0});
    return std::make_unique<Handle>(this, key);
  }

 private:
  struct Active {
    GenerationInput input;
    GenerationObserver* observer;
    uint32_t step;
  };
  class Handle : public GenerationHandle {
   public:
    Handle(EchoGeneration* owner, uint64_t key) : owner_(*owner), key_(key) {}
    ~Handle() override {
      std::lock_guard lock(owner_.mutex_);
      owner_.active_.erase(key_);
    }

   private:
    EchoGeneration& owner_;
    const uint64_t key_;
  };

  void Run() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, step_, [this] { return stopping_; })) {
      for (auto it = active_.begin(); it != active_.end();) it = Step(it->second) ? std::next(it) : active_.erase(it);
    }
  }

  // False when the generation is over.
  bool Step(Active& active) {
    const GenerationInput& input = active.input;
    const uint32_t id = input.prompt_token_ids[active.step % input.prompt_token_ids.size()];
    const bool last = ++active.step >= input.max_tokens;
    for (uint32_t i = 0; i < input.n; ++i) {
      TextDelta delta{
          .output_index = i, .first_index = active.step - 1, .tokens = {}, .text = FakeTextCodec().TokenText(id)};
      v1::Token& token = delta.tokens.emplace_back();
      token.set_id(id);
      if (input.top_logprobs) token.set_logprob(-0.5f);
      active.observer->OnDelta(delta);
      if (last)
        active.observer->OnOutputEnd(
            {.output_index = i, .reason = v1::FINISH_REASON_LENGTH, .stop_match = {}, .stats = {}});
    }
    if (last) {
      active.observer->OnDone({static_cast<uint32_t>(input.prompt_token_ids.size()), active.step * input.n});
    }
    return !last;
  }

  const std::chrono::milliseconds step_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  uint64_t next_key_ = 0;
  std::map<uint64_t, Active> active_;
  std::thread thread_;
};

int Main(int argc, char** argv) {
  const int port = argc > 1 ? std::atoi(argv[1]) : 8000;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const FakeTextCodec codec;
  EchoGeneration generation{std::chrono::milliseconds(argc > 2 ? std::atoi(argv[2]) : 20)};
  ServedModel model{.id = "echo",
                    .max_context_tokens = 1 << 20,
                    .vocab_size = FakeTextCodec::kVocabSize,
                    .max_budget_tokens = 4096,
                    .default_selection = {},
                    .chat_formats = {.tools = ToolFormat::kHermes, .reasoning = ReasoningFormat::kThink},
                    .aliases = {"mirror"}};
  OpenAiService service([&model] { return model; }, &codec, &generation, {});
  RouteTable routes(HttpErrorResponse);
  service.AddRoutes(&routes);
  HttpHooks hooks;
  hooks.on_warning = [](std::string_view message) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
  };
  auto server = HttpServer::Start(
      {.port = static_cast<uint16_t>(port)},
      [&](std::shared_ptr<HttpExchange> exchange) { routes.Dispatch(std::move(exchange)); }, hooks, HttpErrorResponse);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  std::printf("listening on %d\n", (*server)->port());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  (*server)->Stop(std::chrono::seconds(5));
  return 0;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::Main(argc, argv);
}
