#include "transport/inproc/inproc_inbox.h"

#include <random>
#include <unordered_map>

namespace winnow {
namespace {

// Addresses are opaque bytes, so the two ends of an inproc channel need one place to meet.
struct Registry {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<InprocInbox>> inboxes;  // guarded by mutex
};

Registry& TheRegistry() {
  static Registry registry;
  return registry;
}

}  // namespace

void InprocInbox::Push(BlockPtr block) {
  {
    std::lock_guard lock(mutex_);
    if (shut_) return;
    blocks_.push_back(std::move(block));
    not_empty_.store(true, std::memory_order_release);
  }
  changed_.notify_one();
}

void InprocInbox::TakeAll(std::vector<BlockPtr>& out) {
  if (!not_empty_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  not_empty_.store(false, std::memory_order_relaxed);
  for (BlockPtr& block : blocks_) out.push_back(std::move(block));
  blocks_.clear();
}

void InprocInbox::Shut() {
  std::vector<BlockPtr> dropped;
  std::lock_guard lock(mutex_);
  shut_ = true;
  dropped.swap(blocks_);
}

void InprocInbox::Nudge() {
  {
    std::lock_guard lock(mutex_);
    nudged_ = true;
  }
  changed_.notify_one();
}

void InprocInbox::Sleep(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [this] { return nudged_ || !blocks_.empty(); });
  nudged_ = false;
}

InprocRegistration::InprocRegistration(std::weak_ptr<InprocInbox> inbox) {
  std::random_device random;
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  do {
    key_ = uint64_t{random()} << 32 | random();
  } while (!registry.inboxes.emplace(key_, inbox).second);
}

InprocRegistration::~InprocRegistration() {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  registry.inboxes.erase(key_);
}

std::shared_ptr<InprocInbox> InprocRegistration::Find(uint64_t key) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  const auto found = registry.inboxes.find(key);
  return found == registry.inboxes.end() ? nullptr : found->second.lock();
}

}  // namespace winnow
