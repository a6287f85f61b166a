#include "inference_rank/links/link_watch.h"

#include "common/base/logging.h"
#include "common/rpc/dial.h"

namespace winnow {
namespace {

// How long a cache rank may take to answer, while no router has given it up, and when one has.
constexpr std::chrono::milliseconds kPatientDial{1000}, kDial{500};
// Of several heartbeats: what a router does not repeat is over.
constexpr std::chrono::milliseconds kWordHolds{1500};
// Starts of cache ranks come and go: what was learnt of them is forgotten when they are that many.
constexpr size_t kMaxWatched = 1024;

}  // namespace

LinkWatch::LinkWatch(LinkTable& links, Credentials credentials)
    : links_(links), credentials_(std::move(credentials)), thread_([this] { Run(); }) {}

LinkWatch::~LinkWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LinkWatch::NoteExpired(std::span<const v1::Identity> cache_ranks) {
  {
    const std::lock_guard lock(mutex_);
    for (const v1::Identity& cache_rank : cache_ranks) {
      Time& said = expired_[{cache_rank.rank(), cache_rank.incarnation()}];
      has_news_ |= said == Time();
      said = std::chrono::steady_clock::now();
    }
  }
  wake_.notify_all();
}

bool LinkWatch::IsExpired(const Rank& rank, Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = expired_.find(rank);
  return found != expired_.end() && now - found->second < kWordHolds;
}

bool LinkWatch::stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void LinkWatch::Run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, LinkSilence::kLook, [this] { return stopping_ || std::exchange(has_news_, false); });
      if (stopping_) return;
      const Time now = std::chrono::steady_clock::now();
      std::erase_if(expired_, [&](const auto& rank) { return now - rank.second >= kWordHolds; });
    }
    const std::vector<std::shared_ptr<CacheLink>> links = links_.Live();
    for (const std::shared_ptr<CacheLink>& link : links) {
      if (watched_.size() > kMaxWatched) watched_.clear();
      Watched& watched = watched_[{link->peer().rank(), link->peer().incarnation()}];
      if (std::exchange(watched.link, link.get()) != link.get()) watched.silence.BeginAnew();
      Look(link, watched.silence);
      if (stopping()) return;
    }
  }
}

void LinkWatch::Look(const std::shared_ptr<CacheLink>& link, LinkSilence& silence) {
  const Time now = std::chrono::steady_clock::now();
  const bool expired = IsExpired({link->peer().rank(), link->peer().incarnation()}, now);
  if (!silence.Look(link->TakeAwaited(), link->num_heard(), expired, now)) return;
  v1::Identity there = link->peer();
  there.set_address(link->address());
  const absl::Status answered = Dial(there, "", expired ? kDial : kPatientDial, credentials_);
  if (!silence.GivesUp(answered.ok(), std::chrono::steady_clock::now())) return;
  spdlog::warn("the link to cache rank {} is given up, as nothing comes from it{}: {}", link->peer().rank(),
               expired ? ", to a router neither" : "",
               answered.ok() ? "it answers again, over another connection" : std::string(answered.message()));
  link->MarkDead();
}

}  // namespace winnow
