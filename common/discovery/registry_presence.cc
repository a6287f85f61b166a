#include "common/discovery/registry_presence.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/config/host_address.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPresenceBackoff{100};
constexpr milliseconds kLastPresenceBackoff{2000};
constexpr std::chrono::seconds kComplaintInterval{30};
// Of the presence's thread, so that its end is prompt.
constexpr milliseconds kLongestPresenceWait{100};

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

RegistryPresence::RegistryPresence(Options options)
    : options_(std::move(options)),
      credentials_(EtcdCredentials(options_.registry.encrypted ? options_.tls : TlsFiles())),
      ttl_(options_.lease),
      thread_([this] { Run(); }) {}

void RegistryPresence::Leave() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool RegistryPresence::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

RegistryPresence::State RegistryPresence::state() const {
  const std::lock_guard lock(mutex_);
  State state = state_;
  if (!state.connected) state.away_seconds = Seconds(Clock::now() - away_since_);
  return state;
}

bool RegistryPresence::Holds() const {
  const std::lock_guard lock(mutex_);
  const bool is_away = failed_members_ >= options_.registry.endpoints.size();
  return is_away || held_until_ == Clock::time_point() || Clock::now() < held_until_;
}

void RegistryPresence::Renewed(Clock::time_point asked) {
  const std::lock_guard lock(mutex_);
  held_until_ = asked + ttl_;
}

void RegistryPresence::Run() {
  const std::vector<HostPort>& endpoints = options_.registry.endpoints;
  milliseconds backoff = kFirstPresenceBackoff;
  for (size_t member = 0;; member = (member + 1) % endpoints.size()) {
    EtcdClient client(endpoints[member], credentials_);
    const absl::Status status = Session(client, endpoints[member]);
    if (status.ok()) {
      if (lease_ != 0) client.Revoke(lease_).IgnoreError();  // it ends by itself otherwise
      return;
    }
    const bool is_final =
        absl::IsAborted(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
    if (is_final) {
      spdlog::error("the registry {} refuses this process: {}", options_.registry.ToString(),
                    std::string(status.message()));
      if (options_.on_refused) options_.on_refused(status);
      return;
    }
    if (state().connected) backoff = kFirstPresenceBackoff;
    Away(status);
    std::unique_lock lock(mutex_);
    if (stopped_.wait_for(lock, backoff, [this] { return stop_; })) return;
    backoff = std::min(backoff * 2, kLastPresenceBackoff);
  }
}

absl::Status RegistryPresence::Session(EtcdClient& client, const HostPort& endpoint) {
  WINNOW_RETURN_IF_ERROR(PrepareRecords(endpoint));
  const Clock::time_point began = Clock::now();
  WINNOW_RETURN_IF_ERROR(KeepLease(client));
  WINNOW_ASSIGN_OR_RETURN(const int64_t revision, PublishAndRead(client));
  Renewed(began);
  Connected(client.address());
  EtcdWatch watch(client.watches(), Watched(), revision);
  Clock::time_point next_renewal = Clock::now() + ttl_ / 3;
  while (!stopping()) {
    WINNOW_ASSIGN_OR_RETURN(bool news, watch.Wait(std::min(next_renewal, Clock::now() + kLongestPresenceWait)));
    const Clock::time_point asked = Clock::now();
    const bool is_due = asked >= next_renewal;
    if (is_due) {
      const int64_t before = lease_;
      WINNOW_RETURN_IF_ERROR(KeepLease(client));
      news = news || lease_ != before;
      next_renewal = asked + ttl_ / 3;
    }
    if (news) WINNOW_RETURN_IF_ERROR(PublishAndRead(client).status());
    if (is_due) Renewed(asked);
  }
  return absl::OkStatus();
}

absl::Status RegistryPresence::PrepareRecords(const HostPort& endpoint) {
  if (!records_.empty()) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const std::vector<HostPort> addresses, ResolveHost(endpoint));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<RegistryRecord> records, options_.records(addresses.front()));
  for (const RegistryRecord& record : records) {
    records_.emplace_back(record.Key(options_.registry, options_.cluster), record.Value());
  }
  return absl::OkStatus();
}

absl::Status RegistryPresence::KeepLease(EtcdClient& client) {
  if (lease_ != 0) {
    WINNOW_ASSIGN_OR_RETURN(const std::chrono::seconds left, client.KeepAlive(lease_));
    if (left > std::chrono::seconds(0)) return absl::OkStatus();
    spdlog::warn("the lease in the registry has ended: publishing again");
    lease_ = 0;
    const std::lock_guard lock(mutex_);
    ++state_.lost_leases;
  }
  WINNOW_ASSIGN_OR_RETURN(const EtcdClient::Granted granted, client.Grant(options_.lease));
  lease_ = granted.id;
  ttl_ = granted.ttl;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RegistryPresence::PublishAndRead(EtcdClient& client) {
  while (true) {
    etcdserverpb::TxnRequest read;
    for (PublishedRecord& record : records_) {
      WINNOW_RETURN_IF_ERROR(record.Publish(client, lease_));
      *read.add_compare() = record.IsPublished();
    }
    const std::string routers = RouterKeys(options_.registry, options_.cluster);
    etcdserverpb::RangeRequest& range = *read.add_success()->mutable_request_range();
    range.set_key(routers);
    range.set_range_end(EndOfPrefix(routers));
    WINNOW_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse answer, client.Commit(read));
    if (!answer.succeeded()) {  // a record has been taken out since
      if (stopping()) return answer.header().revision();
      continue;
    }
    if (!options_.on_routers || answer.responses_size() == 0) return answer.header().revision();
    std::vector<HostPort> found;
    for (const etcdserverpb::KeyValue& entry : answer.responses(0).response_range().kvs()) {
      if (const std::optional<HostPort> address = RouterAddressOf(entry.value())) {
        found.push_back(*address);
      } else {
        spdlog::warn("{} in the registry has no address that can be read", entry.key());
      }
    }
    {
      const std::lock_guard lock(mutex_);
      state_.routers = found;
    }
    options_.on_routers(std::move(found));
    return answer.header().revision();
  }
}

std::vector<KeyRange> RegistryPresence::Watched() const {
  std::vector<KeyRange> ranges;
  for (const PublishedRecord& record : records_) ranges.push_back({record.key(), ""});
  if (options_.on_routers) {
    const std::string routers = RouterKeys(options_.registry, options_.cluster);
    ranges.push_back({routers, EndOfPrefix(routers)});
  }
  return ranges;
}

void RegistryPresence::Connected(const std::string& address) {
  double away = 0;
  {
    const std::lock_guard lock(mutex_);
    away = Seconds(Clock::now() - away_since_);
    state_.connected = true;
    failed_members_ = 0;
  }
  const bool complained = std::exchange(next_complaint_, {}) != Clock::time_point();
  if (complained) {
    spdlog::info("the registry is back after {:.1f} s: published again by {}", away, address);
  } else {
    spdlog::info("published in the registry {} by {}", options_.registry.ToString(), address);
  }
}

void RegistryPresence::Away(const absl::Status& why) {
  const Clock::time_point now = Clock::now();
  double away = 0;
  size_t routers = 0;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(state_.connected, false)) {
      away_since_ = now;
    } else {
      ++failed_members_;
    }
    away = Seconds(now - away_since_);
    routers = state_.routers.size();
  }
  if (now < next_complaint_) return;
  next_complaint_ = now + kComplaintInterval;
  spdlog::warn("the registry has been away for {:.1f} s, trying on: {}{}", away, std::string(why.message()),
               options_.on_routers ? absl::StrCat("; the ", routers, " routers known last stay") : "");
}

}  // namespace winnow
