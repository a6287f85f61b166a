#include "tools/simulation/cluster/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace winnow::simulation {
namespace {

// Calls that end because another one of the same client has the answer, or its router is stopping: so many in a row are
// one too many.
constexpr uint32_t kMostRetries = 8;

}  // namespace

// One connection of a client with a router, for one sample.
class Clients::Call final : public TokenObserver, public std::enable_shared_from_this<Call> {
 public:
  Call(Clients* clients, std::shared_ptr<Sample> sample, const Process* router)
      : router(router), clients_(clients), sample_(std::move(sample)) {}

  void OnTokens(uint32_t first_index, const std::vector<v1::Token>& tokens) override;
  void OnFinished(v1::FinishReason reason, const v1::SelectionStats& stats) override;
  void OnFailed(const absl::Status& status) override;

  // The client has gone. In a thread of the router, which leaves what is left to whoever resumes it, or frees it.
  void Close(Leftovers leftovers) {
    is_current = false;
    leftovers_ = leftovers;
    if (stream == nullptr) return;
    stream->SetLeftovers(leftovers);
    stream.reset();
  }
  void SetStream(std::unique_ptr<TokenStream> begun) {
    stream = std::move(begun);
    if (!is_current) Close(leftovers_);
  }

  const Process* const router;
  std::unique_ptr<TokenStream> stream;
  bool is_current = true;  // the client listens

 private:
  Clients* const clients_;
  const std::shared_ptr<Sample> sample_;
  Leftovers leftovers_ = Leftovers::kFree;
  uint32_t next_index_ = 0;  // that the router is to tell
};

struct Clients::Sample {
  std::string name;
  size_t request = 0;
  uint32_t index = 0;
  Behaviour behaviour;
  std::chrono::system_clock::time_point deadline;
  std::vector<uint32_t> ids;
  bool ended = false, is_wrong = false;
  std::string resume_key;            // of a resumable one that some router has begun
  std::optional<RankKey> inference;  // of its token; absent: the client has none yet
  uint32_t retries = 0;              // since the last token
  std::shared_ptr<Call> call;
};

void Clients::Call::OnTokens(uint32_t first_index, const std::vector<v1::Token>& tokens) {
  if (!is_current) return;
  Sample& sample = *sample_;
  if (sample.ended) clients_->Violation(sample, "tokens after its end");
  if (first_index != next_index_) {
    clients_->Violation(sample, absl::StrCat("token ", first_index, " came where ", next_index_, " was due"));
  }
  for (const v1::Token& token : tokens) {
    const uint32_t at = next_index_++;
    if (at < sample.ids.size()) {  // told again, to who resumes
      if (sample.ids[at] != token.id()) clients_->Violation(sample, absl::StrCat("token ", at, " is another one now"));
      continue;
    }
    sample.ids.push_back(token.id());
    sample.retries = 0;
    ++clients_->num_tokens;
    if (clients_->expected_ == nullptr) continue;
    const std::vector<uint32_t>& expected = (*clients_->expected_)[sample.request][sample.index];
    if (!sample.is_wrong && (at >= expected.size() || expected[at] != token.id())) {
      sample.is_wrong = true;
      clients_->Violation(sample, absl::StrCat("token ", at, " of ", expected.size(), " is ", token.id(),
                                               at < expected.size() ? absl::StrCat(", alone it is ", expected[at])
                                                                    : " and should not be"));
    }
  }
  if (sample.ids.size() >= sample.behaviour.cancel_after) {
    ++clients_->num_cancelled;
    clients_->End(sample, "is cancelled by its client");
    const auto self = shared_from_this();
    sample.call.reset();
    return Close(Leftovers::kFree);
  }
  if (sample.ids.size() < sample.behaviour.leave_after) return;
  // It reads no more: the router cuts it off, now, or only later, when another call may have the answer already.
  Runtime& runtime = *Runtime::current();
  sample.behaviour.leave_after = UINT32_MAX;
  const auto self = shared_from_this();
  sample.call.reset();
  runtime.Trace("client", absl::StrCat(sample.name, " reads no more, ", sample.ids.size(), " tokens"));
  if (sample.behaviour.comes_back) {
    clients_->ComeBack(sample_, static_cast<Nanos>(runtime.Random(7 * kSecond)));
  } else {
    ++clients_->num_cancelled;
    clients_->End(sample, "is left by its client");
  }
  is_current = false;
  if (runtime.Chance(0.5)) return Close(Leftovers::kKeepComputing);
  Process* const process = runtime.running()->process;
  runtime.Spawn(
      process, [self] { self->Close(Leftovers::kKeepComputing); }, static_cast<Nanos>(runtime.Random(4 * kSecond)));
}

void Clients::Call::OnFinished(v1::FinishReason, const v1::SelectionStats& stats) {
  if (!is_current) return;
  Sample& sample = *sample_;
  clients_->num_not_identical += stats.not_identical();
  if (clients_->expected_ != nullptr) {
    const size_t expected = (*clients_->expected_)[sample.request][sample.index].size();
    if (sample.ids.size() != expected || next_index_ != expected) {
      clients_->Violation(sample, absl::StrCat("ended after ", sample.ids.size(), " tokens, the last call after ",
                                               next_index_, ", instead of ", expected));
    }
  }
  clients_->End(sample, "is answered");
}

void Clients::Call::OnFailed(const absl::Status& status) {
  if (!is_current) return;
  Sample& sample = *sample_;
  if (sample.behaviour.is_resumable && absl::IsAborted(status) && ++sample.retries <= kMostRetries) {
    Runtime::current()->Trace("client", absl::StrCat(sample.name, " is told: ", status.ToString()));
    clients_->ComeBack(sample_, static_cast<Nanos>(Runtime::current()->Random(kSecond)));
  } else {
    clients_->Violation(sample, absl::StrCat("is lost after ", sample.ids.size(), " tokens: ", status.ToString()));
    clients_->End(sample, "is lost");
  }
  const auto self = shared_from_this();
  sample.call.reset();
  Close(Leftovers::kKeepComputing);
}

Clients::Clients(Cluster* cluster, const Answers* expected) : cluster_(cluster), expected_(expected) {
  cluster_->on_router_killed = [this](const Process* router) { OnRouterKilled(router); };
}

void Clients::Violation(const Sample& sample, const std::string& what) {
  violations_.push_back(absl::StrCat(sample.name, ": ", what));
  Runtime::current()->Trace("client", absl::StrCat("VIOLATION ", violations_.back()));
}

void Clients::End(Sample& sample, const char* how) {
  if (std::exchange(sample.ended, true)) Violation(sample, "ended twice");
  --num_open_;
  ++num_ended;
  Runtime::current()->Trace("client", absl::StrCat(sample.name, " ", how, ", ", sample.ids.size(), " tokens"));
}

void Clients::Send(size_t number, std::chrono::seconds timeout, const Behaviour& behaviour) {
  const Request& request = AllRequests()[number];
  Runtime& runtime = cluster_->runtime();
  runtime.Trace("client",
                absl::StrCat("sends request ", number, ": ", request.prompt.size(), " tokens, n = ", request.n));
  const std::chrono::system_clock::time_point now{std::chrono::nanoseconds(runtime.UnixNow())};
  std::vector<std::shared_ptr<Sample>> samples;
  for (uint32_t i = 0; i < request.n; ++i) {
    auto sample = std::make_shared<Sample>();
    sample->name = absl::StrCat("request ", number, " sample ", i);
    sample->request = number;
    sample->index = i;
    sample->behaviour = behaviour;
    sample->deadline = now + timeout;
    samples.push_back(sample);
    samples_.push_back(sample);
    ++num_open_;
  }
  Dispatch(std::move(samples));
}

const std::string* Clients::AnyRouter() const {
  std::vector<const std::string*> present;
  for (const std::string& router : cluster_->routers()) {
    if (cluster_->router(router) != nullptr) present.push_back(&router);
  }
  return present.empty() ? nullptr : present[cluster_->runtime().Random(present.size())];
}

void Clients::Dispatch(std::vector<std::shared_ptr<Sample>> samples) {
  Runtime& runtime = cluster_->runtime();
  const std::string* const router = AnyRouter();
  if (router == nullptr) {
    runtime.At(runtime.now() + 100 * kMillisecond, [this, samples = std::move(samples)] { Dispatch(samples); });
    return;
  }
  Process* const process = cluster_->Find(*router);
  const auto size = static_cast<uint32_t>(samples.size());
  const uint64_t group = size > 1 ? next_group_++ : 0;
  for (const auto& sample : samples) sample->call = std::make_shared<Call>(this, sample, process);
  runtime.Spawn(process, [this, router = *router, samples = std::move(samples), group, size] {
    for (const auto& sample : samples) StartCall(router, sample, group, size);
  });
}

void Clients::StartCall(const std::string& router, const std::shared_ptr<Sample>& sample, uint64_t group,
                        uint32_t group_size) {
  const Request& request = AllRequests()[sample->request];
  TokenRequest token_request;
  token_request.prompt_token_ids = request.prompt;
  token_request.tenant = request.tenant;
  token_request.sampling = request.sampling;
  token_request.sampling.set_sample_index(sample->index);
  token_request.stopping = request.stopping;
  token_request.selection = request.selection;
  token_request.deadline = sample->deadline;
  token_request.group = group;
  token_request.group_size = group_size;
  const bool resumes = sample->inference.has_value();
  if (sample->behaviour.is_resumable && !resumes) sample->resume_key = absl::StrCat("key ", next_key_++);
  token_request.resume_key = sample->resume_key;
  if (resumes) {
    token_request.resume =
        TokenResume{.inference = *sample->inference, .next_index = static_cast<uint32_t>(sample->ids.size())};
    Runtime::current()->Trace("client", absl::StrCat(sample->name, " resumes at ", router));
  }
  const std::shared_ptr<Call> call = sample->call;
  absl::StatusOr<std::unique_ptr<TokenStream>> stream =
      cluster_->router(router)->dispatcher().Start(std::move(token_request), call.get());
  if (stream.ok()) {
    // The head of the response, with the token.
    if (sample->behaviour.is_resumable && !resumes) {
      const std::optional<ForkSource> place = (*stream)->fork_source();
      sample->inference = place ? place->inference : RankKey();
    }
    return call->SetStream(*std::move(stream));
  }
  call->is_current = false;
  // A router that was started anew and has not seen the whole cluster yet refuses; who is told so tries again.
  if (absl::IsUnavailable(stream.status()) && router_was_killed_) {
    return ComeBack(sample, 100 * kMillisecond);
  }
  Violation(*sample, absl::StrCat("is refused: ", stream.status().ToString()));
  End(*sample, "is refused");
}

void Clients::ComeBack(const std::shared_ptr<Sample>& sample, Nanos after) {
  Runtime& runtime = *Runtime::current();
  runtime.At(runtime.now() + after, [this, sample] {
    if (!sample->ended) Dispatch({sample});
  });
}

void Clients::OnRouterKilled(const Process* router) {
  router_was_killed_ = true;
  for (const auto& sample : samples_) {
    if (sample->ended || sample->call == nullptr || sample->call->router != router || !sample->call->is_current) {
      continue;
    }
    sample->call->is_current = false;
    (void)sample->call->stream.release();  // as it was, like all of the process
    // Without a token nothing of the answer has come, and the request is sent again.
    if (sample->behaviour.is_resumable || sample->ids.empty()) {
      ComeBack(sample, static_cast<Nanos>(Runtime::current()->Random(kSecond)));
    } else {
      ++num_lost_with_router;
      End(*sample, "is lost with its router");
    }
  }
}

std::vector<std::vector<uint32_t>> Clients::Ids() const {
  std::vector<std::vector<uint32_t>> all;
  for (const auto& sample : samples_) all.push_back(sample->ids);
  return all;
}

}  // namespace winnow::simulation
