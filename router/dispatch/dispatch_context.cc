#include "router/dispatch/dispatch_context.h"

#include "common/rpc/channel.h"
#include "router/dispatch/kv_room.h"
#include "router/dispatch/routing_policy.h"

namespace winnow {
namespace {

DispatcherOptions WithDefaults(DispatcherOptions options) {
  if (!options.channels) options.channels = [](const std::string& address) { return NewChannel(address); };
  return options;
}

std::mt19937_64 SeededGenerator() {
  std::random_device device;
  std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
  return std::mt19937_64(seed);
}

}  // namespace

DispatchContext::DispatchContext(DispatcherOptions o, Registry* r, TimerQueue* t)
    : options(WithDefaults(std::move(o))),
      registry(r),
      timers(t),
      reports_(std::make_shared<Strand>()),
      clients(std::make_shared<RankClients>(options.identity, options.channels, options.client,
                                            [reports = reports_, r](const v1::Identity& rank) {
                                              reports->Post([r, rank] { r->ReportUnreachable(rank); });
                                            })),
      cache_rank_orders(options.channels, {.identity = options.identity, .call_timeout = options.release_timeout}),
      random_(SeededGenerator()) {}

absl::Status DispatchContext::Admit(const std::shared_ptr<DispatchedRequest>& request, uint64_t group) {
  {
    std::lock_guard lock(mutex_);
    WINNOW_RETURN_IF_ERROR(admits_);
    if (requests_.size() < options.max_queue) {
      requests_.emplace(request.get(), request);
      if (group != 0) ++groups_[group].members;
      counters.admitted.fetch_add(1);
      return absl::OkStatus();
    }
  }
  counters.rejected.fetch_add(1);
  return absl::ResourceExhaustedError(absl::StrCat("queue is full: ", options.max_queue, " requests are under way"));
}

void DispatchContext::Remove(const DispatchedRequest* request, uint64_t group) {
  std::lock_guard lock(mutex_);
  requests_.erase(request);
  if (requests_.empty()) emptied_.notify_all();
  if (group == 0) return;
  const auto it = groups_.find(group);
  if (it != groups_.end() && --it->second.members == 0) groups_.erase(it);
}

std::vector<std::shared_ptr<DispatchedRequest>> DispatchContext::All() const {
  std::vector<std::shared_ptr<DispatchedRequest>> all;
  std::lock_guard lock(mutex_);
  for (const auto& [key, weak] : requests_) {
    if (auto request = weak.lock()) all.push_back(std::move(request));
  }
  return all;
}

size_t DispatchContext::num_requests() const {
  std::lock_guard lock(mutex_);
  return requests_.size();
}

void DispatchContext::StopAdmitting(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  admits_.Update(status);
}

void DispatchContext::StopReports() {
  reports_->Close();
}

void DispatchContext::AwaitEmpty() {
  std::unique_lock lock(mutex_);
  emptied_.wait(lock, [this] { return requests_.empty(); });
}

void DispatchContext::GiveUp(uint64_t sequence_id, const Route& route) {
  counters.sequences_given_up.fetch_add(1);
  // One that has lost its membership may only have stopped for a while.
  for (const v1::Identity& cache : route.caches) cache_rank_orders.Release(sequence_id, cache);
}

void DispatchContext::FreeOn(const v1::Identity& rank, const std::string& resume_key, const std::string& tenant,
                             int attempts) {
  if (attempts == 0) return;
  const auto again = [weak = weak_from_this(), rank, resume_key, tenant, attempts] {
    const auto self = weak.lock();
    if (!self) return;
    self->timers->After(self->options.retry.most / 4, [weak, rank, resume_key, tenant, attempts] {
      if (const auto context = weak.lock()) context->FreeOn(rank, resume_key, tenant, attempts - 1);
    });
  };
  const std::shared_ptr<RankClient> client = clients->Get(rank);
  if (client == nullptr) return;
  const absl::Status sent =
      client->Free(NewAttemptId(), resume_key, tenant, [again](const absl::StatusOr<v1::DispatchResponse>& answer) {
        if (!answer.ok()) again();
      });
  if (!sent.ok()) again();
}

RouteNeed DispatchContext::NeedOf(const TokenRequest& request) const {
  const auto prompt_tokens = static_cast<uint32_t>(request.prompt_token_ids.size());
  RouteNeed need{.prompt_tokens = prompt_tokens, .shards = options.shards};
  if (const std::optional<KvLayout> kv = registry->kv_layout()) {
    const auto lists = static_cast<uint32_t>(kv->num_lists());
    need.shards.most = std::max(need.shards.least, std::min(need.shards.most, lists));
    need.kv_bytes = KvBytes(*kv, lists, uint64_t{prompt_tokens} + request.stopping.max_tokens());
  }
  return need;
}

uint32_t DispatchContext::MostPositions() const {
  const std::optional<KvLayout> kv = registry->kv_layout();
  return kv ? winnow::MostPositions(registry->Snapshot(), *kv, options.shards) : 0;
}

absl::StatusOr<Route> DispatchContext::ChooseRouteFor(RouteNeed need, uint64_t group) {
  if (group != 0) {
    std::lock_guard lock(mutex_);
    if (const auto it = groups_.find(group); it != groups_.end() && it->second.route) {
      need.prefer_inference = KeyOf(it->second.route->inference);
      need.prefer_caches = KeysOf(it->second.route->caches);
      // A sibling that failed over has shown the way; do not go back to the rank that failed.
      if (need.prefer_inference == need.avoid_inference) need.prefer_inference.reset();
      if (need.prefer_caches == need.avoid_caches) need.prefer_caches.clear();
    }
  }
  need.failing_inference = failing_ranks.At(std::chrono::steady_clock::now());
  const SlowStart slow_start{.window = options.slow_start, .now = registry->Now()};
  WINNOW_ASSIGN_OR_RETURN(Route route, ChooseRoute(registry->Snapshot(), clients->Assigned(), need, slow_start));
  if (group != 0) {
    std::lock_guard lock(mutex_);
    if (const auto it = groups_.find(group); it != groups_.end()) it->second.route = route;
  }
  return route;
}

void DispatchContext::NoteMembership(const MembershipSnapshot& snapshot) {
  if (!was_complete_) was_complete_ = ChooseRoute(snapshot, {}, {.shards = options.shards}).ok();
}

DispatchContext::GroupRole DispatchContext::JoinGroup(uint64_t group, uint32_t group_size, const Route& route,
                                                      uint64_t sequence_id, uint64_t previous_id) {
  if (group == 0) return {};
  const ForkSource self{
      .sequence_id = sequence_id, .inference = KeyOf(route.inference), .caches = KeysOf(route.caches)};
  std::lock_guard lock(mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end()) return {};
  std::optional<ForkSource>& leader = it->second.leader;
  if (!leader) {
    leader = self;
    return {.followers = group_size - 1};
  }
  const bool is_near = leader->inference == self.inference && leader->caches == self.caches;
  if (is_near && leader->sequence_id != previous_id) return {.fork_of = leader->sequence_id};
  leader = self;
  return {};
}

void DispatchContext::MoveLeader(uint64_t group, uint64_t sequence_id, const Route& route) {
  std::lock_guard lock(mutex_);
  const auto it = groups_.find(group);
  if (it == groups_.end() || !it->second.leader || it->second.leader->sequence_id != sequence_id) return;
  it->second.leader->inference = KeyOf(route.inference);
  it->second.leader->caches = KeysOf(route.caches);
}

uint64_t DispatchContext::NewSequenceId() {
  std::lock_guard lock(mutex_);
  uint64_t id = 0;
  while (id == 0) id = random_();
  return id;
}

double DispatchContext::Jitter() {
  std::lock_guard lock(mutex_);
  return std::uniform_real_distribution<double>(0, 1)(random_);
}

}  // namespace winnow
