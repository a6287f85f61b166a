#include "router/membership/reachability.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/rpc/channel.h"
#include "common/rpc/dial.h"
#include "common/rpc/grpc_status.h"
#include "winnow/v1/admin.grpc.pb.h"

namespace winnow {
namespace {

// Each call blocks one for a dial_timeout or two, a DialBack for as long as the rank that registers waits.
constexpr size_t kThreads = 8;

// A process that was starved of CPU for a moment has not lost its links.
constexpr int kFailuresOfALostLink = 2;

constexpr std::chrono::seconds kLogInterval{30};
// A rank tries again every half second.
constexpr std::chrono::seconds kForgetAfter{10};
constexpr size_t kMaxReasons = 3;

absl::Status AskWhetherItReaches(const v1::Identity& inference, const v1::Identity& cache,
                                 std::chrono::milliseconds timeout, const Credentials& credentials) {
  const auto stub = v1::AdminService::NewStub(NewChannel(inference.address(), credentials));
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::ReachRequest request;
  *request.mutable_target() = cache;
  v1::ReachResponse response;
  return FromGrpc(stub->Reach(&context, request, &response));
}

}  // namespace

Reachability::Reachability(Options options, Registry* registry)
    : options_(std::move(options)), registry_(registry), pool_(kThreads) {
  subscription_ = registry_->Subscribe([this](const MembershipSnapshot&) { Sweep(); });
}

Reachability::~Reachability() {
  subscription_.reset();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pool_.stop();
  pool_.join();
}

void Reachability::DialBack(const v1::RegisterRequest& request, std::chrono::milliseconds limit,
                            std::function<void(const absl::Status&)> done) {
  boost::asio::post(pool_, [this, request, limit, done = std::move(done)] {
    const absl::Status status = Dial(request.identity(), request.hosted_by_rank(), limit, options_.credentials);
    {
      const std::lock_guard lock(mutex_);
      const std::string& name = request.identity().rank();
      if (status.ok()) {
        unreachable_.erase(name);
        next_log_.erase(name);
      } else {
        unreachable_[name] = {request.identity(), std::string(status.message()), Clock::now()};
        LogRefusal(unreachable_[name]);
      }
    }
    done(status);
  });
}

void Reachability::LogRefusal(const Unreachable& rank) {
  const Clock::time_point now = Clock::now();
  Clock::time_point& next = next_log_[rank.identity.rank()];
  if (now < next) return;
  next = now + kLogInterval;
  spdlog::warn("{} wants to join and does not count yet: {}", rank.identity.rank(), rank.reason);
}

void Reachability::Sweep() {
  const MembershipSnapshot snapshot = registry_->Snapshot();
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  std::erase_if(unreachable_, [&](const auto& rank) { return now - rank.second.when > kForgetAfter; });
  std::map<Link, LinkState> links;
  for (const RankRecord& rank : snapshot.ranks) {
    if (rank.suspect) DialAgain(rank);
    if (rank.identity.role() != v1::ROLE_INFERENCE_RANK) continue;
    for (const RankRecord& cache : snapshot.ranks) {
      if (cache.identity.role() != v1::ROLE_CACHE_RANK || !cache.hosted_by_rank.empty()) continue;
      const Link link{KeyOf(rank.identity), KeyOf(cache.identity)};
      LinkState state = links_[link];
      // A rank that was given up and has come back begins without links.
      const bool begins_anew = state.failures == 0 && std::find(rank.unreached.begin(), rank.unreached.end(),
                                                                link.second) != rank.unreached.end();
      if (!state.under_way && (now >= state.next || begins_anew)) {
        state.under_way = true;
        CheckLink(rank, cache);
      }
      links.emplace(link, std::move(state));
    }
  }
  links_ = std::move(links);
}

void Reachability::DialAgain(const RankRecord& rank) {
  if (!dialing_.insert(KeyOf(rank.identity)).second) return;
  boost::asio::post(pool_, [this, identity = rank.identity, hosted_by = rank.hosted_by_rank] {
    const absl::Status status = Dial(identity, hosted_by, options_.dial_timeout, options_.credentials);
    {
      const std::lock_guard lock(mutex_);
      dialing_.erase(KeyOf(identity));
    }
    if (status.ok()) registry_->Reached(identity);
  });
}

void Reachability::CheckLink(const RankRecord& inference, const RankRecord& cache) {
  boost::asio::post(pool_, [this, from = inference.identity, to = cache.identity] {
    LinkChecked({KeyOf(from), KeyOf(to)}, to.rank(),
                AskWhetherItReaches(from, to, 2 * options_.dial_timeout, options_.credentials));
  });
}

void Reachability::LinkChecked(const Link& link, const std::string& cache_name, const absl::Status& status) {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    const auto it = links_.find(link);
    if (it == links_.end()) return;
    LinkState& state = it->second;
    state.under_way = false;
    state.next = Clock::now() + (status.ok() ? options_.recheck : options_.sweep) * 9 / 10;
    state.failures = status.ok() ? 0 : state.failures + 1;
    state.reason = status.ok() ? "" : absl::StrCat(link.first.rank, ": ", std::string(status.message()));
    lost = !status.ok() && (!state.checked || state.failures == kFailuresOfALostLink);
    if (lost) spdlog::warn("{} does not reach {}: {}", link.first.rank, cache_name, std::string(status.message()));
    state.checked = true;
  }
  if (status.ok() || lost) registry_->SetLink(link.first, link.second, status.ok());
}

std::vector<Reachability::Unreachable> Reachability::unreachable() const {
  const std::lock_guard lock(mutex_);
  std::vector<Unreachable> ranks;
  for (const auto& [name, rank] : unreachable_) ranks.push_back(rank);
  return ranks;
}

std::string Reachability::Reasons() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> reasons;
  for (const auto& [name, rank] : unreachable_) reasons.push_back(rank.reason);
  for (const auto& [link, state] : links_) {
    if (!state.reason.empty()) reasons.push_back(state.reason);
  }
  if (reasons.size() > kMaxReasons) {
    const size_t more = reasons.size() - kMaxReasons;
    reasons.resize(kMaxReasons);
    reasons.push_back(absl::StrCat("and ", more, " more"));
  }
  return absl::StrJoin(reasons, "; ");
}

}  // namespace winnow
