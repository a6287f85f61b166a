#include "tools/simulation/cluster/client.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace winnow::simulation {

class Clients::Sample final : public TokenObserver {
 public:
  Sample(Clients* clients, size_t request, uint32_t index, uint32_t cancel_after)
      : name(absl::StrCat("request ", request, " sample ", index)),
        request(request),
        index(index),
        cancel_after(cancel_after),
        clients_(clients) {}

  void OnTokens(uint32_t first_index, const std::vector<v1::Token>& tokens) override {
    if (ended) clients_->Violation(*this, "tokens after its end");
    if (first_index != ids.size()) {
      clients_->Violation(*this, absl::StrCat("token ", first_index, " came where ", ids.size(), " was due"));
    }
    for (const v1::Token& token : tokens) {
      const uint32_t at = static_cast<uint32_t>(ids.size());
      ids.push_back(token.id());
      ++clients_->num_tokens;
      if (clients_->expected_ == nullptr) continue;
      const std::vector<uint32_t>& expected = (*clients_->expected_)[request][index];
      if (!is_wrong && (at >= expected.size() || expected[at] != token.id())) {
        is_wrong = true;
        clients_->Violation(*this, absl::StrCat("token ", at, " of ", expected.size(), " is ", token.id(),
                                                at < expected.size() ? absl::StrCat(", alone it is ", expected[at])
                                                                     : " and should not be"));
      }
    }
    if (ids.size() >= cancel_after) Cancel();
  }
  void OnFinished(v1::FinishReason, const v1::SelectionStats& stats) override {
    clients_->num_not_identical += stats.not_identical();
    if (clients_->expected_ != nullptr && ids.size() != (*clients_->expected_)[request][index].size()) {
      clients_->Violation(*this, absl::StrCat("ended after ", ids.size(), " tokens instead of ",
                                              (*clients_->expected_)[request][index].size()));
    }
    End("is answered");
  }
  void OnFailed(const absl::Status& status) override {
    clients_->Violation(*this, absl::StrCat("is lost after ", ids.size(), " tokens: ", status.ToString()));
    End("is lost");
  }

  void Cancel() {
    if (ended) return;
    ++clients_->num_cancelled;
    End("is cancelled by its client");
    stream.reset();
  }
  void End(const char* how) {
    if (std::exchange(ended, true)) clients_->Violation(*this, "ended twice");
    --clients_->num_open_;
    ++clients_->num_ended;
    Runtime::current()->Trace("client", absl::StrCat(name, " ", how, ", ", ids.size(), " tokens"));
  }

  const std::string name;
  const size_t request;
  const uint32_t index;
  const uint32_t cancel_after;
  std::vector<uint32_t> ids;
  bool ended = false;
  bool is_wrong = false;
  std::unique_ptr<TokenStream> stream;

 private:
  Clients* const clients_;
};

void Clients::Violation(const Sample& sample, const std::string& what) {
  violations_.push_back(absl::StrCat(sample.name, ": ", what));
  Runtime::current()->Trace("client", absl::StrCat("VIOLATION ", violations_.back()));
}

void Clients::Send(size_t number, std::chrono::seconds timeout, uint32_t cancel_after) {
  const Request& request = AllRequests()[number];
  const uint64_t group = request.n > 1 ? next_group_++ : 0;
  Runtime::current()->Trace(
      "client", absl::StrCat("sends request ", number, ": ", request.prompt.size(), " tokens, n = ", request.n));
  for (uint32_t i = 0; i < request.n; ++i) {
    auto sample = std::make_shared<Sample>(this, number, i, cancel_after);
    TokenRequest token_request;
    token_request.prompt_token_ids = request.prompt;
    token_request.tenant = request.tenant;
    token_request.sampling = request.sampling;
    token_request.sampling.set_sample_index(i);
    token_request.stopping = request.stopping;
    token_request.selection = request.selection;
    token_request.deadline = std::chrono::system_clock::now() + timeout;
    token_request.group = group;
    token_request.group_size = request.n;
    ++num_open_;
    samples_.push_back(sample);
    absl::StatusOr<std::unique_ptr<TokenStream>> stream =
        cluster_->router()->dispatcher().Start(std::move(token_request), sample.get());
    if (!stream.ok()) {
      Violation(*sample, absl::StrCat("is refused: ", stream.status().ToString()));
      sample->End("is refused");
    } else if (!sample->ended) {
      sample->stream = *std::move(stream);
    }
  }
}

std::vector<std::vector<uint32_t>> Clients::Ids() const {
  std::vector<std::vector<uint32_t>> all;
  for (const auto& sample : samples_) all.push_back(sample->ids);
  return all;
}

}  // namespace winnow::simulation
