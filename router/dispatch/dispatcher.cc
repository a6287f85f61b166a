#include "router/dispatch/dispatcher.h"

#include "router/dispatch/dispatch_context.h"
#include "router/dispatch/dispatched_request.h"

namespace winnow {
namespace {

// Of telling a rank to let go of an output: a stream that breaks is made anew.
constexpr int kFreeAttempts = 4;

class DispatchedStream final : public TokenStream {
 public:
  explicit DispatchedStream(std::shared_ptr<DispatchedRequest> request) : request_(std::move(request)) {}
  ~DispatchedStream() override { request_->Abandon(leftovers_); }
  std::optional<ForkSource> fork_source() const override { return request_->fork_source(); }
  void SetLeftovers(Leftovers leftovers) override { leftovers_ = leftovers; }

 private:
  const std::shared_ptr<DispatchedRequest> request_;
  Leftovers leftovers_ = Leftovers::kFree;
};

}  // namespace

Dispatcher::Dispatcher(DispatcherOptions options, Registry* registry, TimerQueue* timers)
    : context_(std::make_shared<DispatchContext>(std::move(options), registry, timers)) {
  subscription_ = registry->Subscribe([context = context_](const MembershipSnapshot& snapshot) {
    context->NoteMembership(snapshot);
    context->clients->Retain(snapshot);
    for (const auto& request : context->All()) request->PostMembershipChange();
  });
  context_->NoteMembership(registry->Snapshot());
}

Dispatcher::~Dispatcher() {
  const absl::Status stopped = absl::UnavailableError("the router is shutting down");
  StopAdmitting(stopped);
  context_->StopReports();
  subscription_.reset();
  FailAll(stopped);
  context_->cache_rank_orders.Stop();
  context_->clients->CloseAll();
}

absl::StatusOr<std::unique_ptr<TokenStream>> Dispatcher::Start(TokenRequest request, TokenObserver* observer) {
  if (request.deadline <= std::chrono::system_clock::now()) {
    return absl::DeadlineExceededError("the deadline has passed");
  }
  const uint64_t group = request.group;
  const RouteNeed need = context_->NeedOf(request);
  auto dispatched = std::make_shared<DispatchedRequest>(context_, std::move(request), observer);
  WINNOW_RETURN_IF_ERROR(context_->Admit(dispatched, group));
  if (const auto route = context_->ChooseRouteFor(need, group); !route.ok() && !context_->WasComplete()) {
    context_->Remove(dispatched.get(), group);
    return route.status();
  }
  dispatched->Begin();
  return std::make_unique<DispatchedStream>(std::move(dispatched));
}

void Dispatcher::Free(const std::string& resume_key, const std::string& tenant) {
  const MembershipSnapshot snapshot = context_->registry->Snapshot();
  for (const RankRecord& record : snapshot.ranks) {
    if (record.identity.role() != v1::ROLE_INFERENCE_RANK) continue;
    context_->FreeOn(record.identity, resume_key, tenant, kFreeAttempts);
  }
}

void Dispatcher::StopAdmitting(const absl::Status& status) {
  context_->StopAdmitting(status);
}

void Dispatcher::FailAll(const absl::Status& status) {
  for (const auto& request : context_->All()) request->PostFailure(status);
  context_->AwaitEmpty();
}

size_t Dispatcher::num_requests() const {
  return context_->num_requests();
}

AssignedCounts Dispatcher::Assigned() const {
  return context_->clients->Assigned();
}

uint32_t Dispatcher::MostPositions() const {
  return context_->MostPositions();
}

const DispatcherCounters& Dispatcher::counters() const {
  return context_->counters;
}

}  // namespace winnow
