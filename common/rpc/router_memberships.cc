#include "common/rpc/router_memberships.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/config/host_address.h"

namespace winnow {
namespace {

constexpr std::chrono::milliseconds kResolveInterval{3000};
constexpr std::chrono::milliseconds kFirstResolveInterval{200};  // until some router is known

bool IsIpv6(const HostPort& address) {
  return address.host.find(':') != std::string::npos;
}

}  // namespace

RouterMemberships::RouterMemberships(std::vector<HostPort> routers, MembershipClient::Options options)
    : routers_(std::move(routers)), options_(std::move(options)), thread_([this] { Run(); }) {}

RouterMemberships::~RouterMemberships() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  std::map<std::string, Member> members;
  {
    const std::lock_guard lock(mutex_);
    members.swap(members_);
  }
}

void RouterMemberships::Run() {
  bool complained = false;
  std::unique_lock lock(mutex_);
  while (!stop_ && !refused_) {
    lock.unlock();
    const std::vector<HostPort> addresses = Resolve();
    if (addresses.empty() && !std::exchange(complained, true)) spdlog::warn("no address of a router is known yet");
    Follow(addresses);
    lock.lock();
    wake_.wait_for(lock, members_.empty() ? kFirstResolveInterval : kResolveInterval,
                   [this] { return stop_ || refused_ || std::exchange(discovery_changed_, false); });
  }
}

void RouterMemberships::SetDiscovered(std::vector<HostPort> routers) {
  {
    const std::lock_guard lock(mutex_);
    discovered_ = std::move(routers);
    discovery_changed_ = true;
  }
  wake_.notify_all();
}

std::vector<HostPort> RouterMemberships::Resolve() {
  std::vector<HostPort> routers = routers_;
  {
    const std::lock_guard lock(mutex_);
    routers.insert(routers.end(), discovered_.begin(), discovered_.end());
  }
  std::vector<HostPort> all;
  for (const HostPort& router : routers) {
    absl::StatusOr<std::vector<HostPort>> addresses = ResolveHost(router);
    if (!addresses.ok()) continue;
    const bool v6 = !addresses->empty() && IsIpv6(addresses->front());
    std::erase_if(*addresses, [&](const HostPort& address) { return IsIpv6(address) != v6; });
    for (HostPort& address : *addresses) {
      if (std::find(all.begin(), all.end(), address) == all.end()) all.push_back(std::move(address));
    }
  }
  return all;
}

void RouterMemberships::Follow(const std::vector<HostPort>& addresses) {
  std::vector<std::unique_ptr<MembershipClient>> gone;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  for (auto it = members_.begin(); it != members_.end();) {
    const bool is_named = std::any_of(addresses.begin(), addresses.end(),
                                      [&](const HostPort& address) { return address.ToString() == it->first; });
    // A router whose name is lost for a while still has the rank.
    if (is_named || it->second.serving) {
      ++it;
      continue;
    }
    gone.push_back(std::move(it->second.client));
    it = members_.erase(it);
  }
  for (const HostPort& address : addresses) {
    const auto [it, is_new] = members_.try_emplace(address.ToString());
    if (is_new) it->second.client = Join(address);
  }
}

std::unique_ptr<MembershipClient> RouterMemberships::Join(const HostPort& router) {
  MembershipClient::Options options = options_;
  options.router = router;
  options.on_serving = [this, address = router.ToString()](bool serving) { SetServing(address, serving); };
  options.on_refused = [this](const absl::Status& status) { Refused(status); };
  return std::make_unique<MembershipClient>(std::move(options));
}

void RouterMemberships::SetServing(const std::string& address, bool serving) {
  const std::lock_guard lock(mutex_);
  const auto it = members_.find(address);
  if (it == members_.end()) return;
  it->second.serving = serving;
  const bool any =
      std::any_of(members_.begin(), members_.end(), [](const auto& member) { return member.second.serving; });
  if (std::exchange(serving_, any) != any && options_.on_serving) options_.on_serving(any);
}

void RouterMemberships::Refused(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(refused_, true)) return;
  }
  wake_.notify_all();
  if (options_.on_refused) options_.on_refused(status);
}

}  // namespace winnow
