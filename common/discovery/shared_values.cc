#include "common/discovery/shared_values.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/discovery/etcd_watch.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstValuesBackoff{100};
constexpr milliseconds kLastValuesBackoff{2000};
// Of the thread, so that its end is prompt, and what is set here is published soon.
constexpr milliseconds kLongestValuesWait{50};
// Of Set: a call to a member that does not answer, and one to the next one.
constexpr milliseconds kPublishLimit{5000};

}  // namespace

SharedValues::SharedValues(Options options)
    : options_(std::move(options)),
      credentials_(EtcdCredentials(options_.registry.encrypted ? options_.tls : TlsFiles())),
      thread_([this] { Run(); }) {}

SharedValues::~SharedValues() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status SharedValues::Set(const Values& values) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, value] : values) values_[name] = unpublished_[name] = value;
  }
  changed_.notify_all();
  Tell();
  std::unique_lock lock(mutex_);
  const bool is_there = changed_.wait_for(lock, kPublishLimit, [&] {
    const bool is_published = std::none_of(values.begin(), values.end(),
                                           [this](const auto& value) { return unpublished_.contains(value.first); });
    return is_published || !away_.ok() || stop_;
  });
  if (!away_.ok()) return away_;
  return is_there && !stop_ ? absl::OkStatus() : absl::UnavailableError("the registry does not answer");
}

bool SharedValues::IsSettled() const {
  const std::lock_guard lock(mutex_);
  return read_ || failed_members_ >= options_.registry.endpoints.size();
}

bool SharedValues::HasUnpublished() const {
  const std::lock_guard lock(mutex_);
  return !unpublished_.empty();
}

bool SharedValues::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void SharedValues::Tell() {
  const std::lock_guard telling(telling_);
  Values values;
  {
    const std::lock_guard lock(mutex_);
    values = values_;
  }
  options_.on_values(values);
}

void SharedValues::Run() {
  const std::vector<HostPort>& members = options_.registry.endpoints;
  milliseconds backoff = kFirstValuesBackoff;
  for (size_t member = 0;; member = (member + 1) % members.size()) {
    EtcdClient client(members[member], credentials_);
    const absl::Status status = Session(client);
    if (status.ok()) return;
    std::unique_lock lock(mutex_);
    if (away_.ok() && read_) backoff = kFirstValuesBackoff;
    ++failed_members_;
    if (failed_members_ >= members.size()) {
      away_ = absl::UnavailableError(absl::StrCat("the registry is away: ", status.message()));
      changed_.notify_all();
    }
    if (changed_.wait_for(lock, backoff, [this] { return stop_; })) return;
    backoff = std::min(backoff * 2, kLastValuesBackoff);
  }
}

absl::Status SharedValues::Session(EtcdClient& client) {
  WINNOW_ASSIGN_OR_RETURN(const int64_t revision, Exchange(client));
  EtcdWatch watch(client.watches(), {{options_.folder, EndOfPrefix(options_.folder)}}, revision);
  while (!stopping()) {
    WINNOW_ASSIGN_OR_RETURN(const bool news, watch.Wait(Clock::now() + kLongestValuesWait));
    if (news || HasUnpublished()) WINNOW_RETURN_IF_ERROR(Exchange(client).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<etcdserverpb::RangeResponse> SharedValues::Read(EtcdClient& client) const {
  etcdserverpb::RangeRequest request;
  request.set_key(options_.folder);
  request.set_range_end(EndOfPrefix(options_.folder));
  return client.Range(request);
}

absl::Status SharedValues::Put(EtcdClient& client, const std::string& name, const std::string& value,
                               bool only_if_absent) const {
  etcdserverpb::TxnRequest request;
  if (only_if_absent) {
    etcdserverpb::Compare& compare = *request.add_compare();
    compare.set_target(etcdserverpb::Compare::MOD);
    compare.set_result(etcdserverpb::Compare::EQUAL);
    compare.set_key(options_.folder + name);
    compare.set_mod_revision(0);
  }
  etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(options_.folder + name);
  put.set_value(value);
  return client.Commit(request).status();
}

absl::StatusOr<int64_t> SharedValues::Exchange(EtcdClient& client) {
  Values held, published;
  {
    const std::lock_guard lock(mutex_);
    held = values_;
    published = unpublished_;
  }
  for (const auto& [name, value] : published) {
    WINNOW_RETURN_IF_ERROR(Put(client, name, value, /*only_if_absent=*/false));
  }
  WINNOW_ASSIGN_OR_RETURN(etcdserverpb::RangeResponse all, Read(client));
  Values found;
  for (const etcdserverpb::KeyValue& entry : all.kvs()) {
    found[entry.key().substr(options_.folder.size())] = entry.value();
  }
  for (const auto& [name, value] : held) {
    if (!found.contains(name)) WINNOW_RETURN_IF_ERROR(Put(client, name, value, /*only_if_absent=*/true));
  }
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, value] : published) {
      const auto it = unpublished_.find(name);
      if (it != unpublished_.end() && it->second == value) unpublished_.erase(it);
    }
    // What was set here meanwhile, or was lost there, stands. The watch brings what others put in its place.
    for (const auto& [name, value] : found) {
      if (!unpublished_.contains(name)) values_[name] = value;
    }
    if (std::exchange(read_, true) && !away_.ok()) spdlog::info("the registry is back: its shared values are read");
    failed_members_ = 0;
    away_ = absl::OkStatus();
  }
  Tell();
  changed_.notify_all();
  return all.header().revision();
}

}  // namespace winnow
