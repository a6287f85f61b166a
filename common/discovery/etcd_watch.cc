#include "common/discovery/etcd_watch.h"

#include <utility>

namespace winnow {

EtcdWatch::EtcdWatch(etcdserverpb::Watch::Stub* stub, std::vector<KeyRange> ranges, int64_t revision)
    : ranges_(std::move(ranges)), revision_(revision) {
  stub->async()->Watch(&context_, this);
  WriteNext();
  StartRead(&response_);
  StartCall();
}

EtcdWatch::~EtcdWatch() {
  context_.TryCancel();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

absl::StatusOr<bool> EtcdWatch::Wait(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [this] { return news_ || !ended_.ok(); });
  WINNOW_RETURN_IF_ERROR(ended_);
  return std::exchange(news_, false);
}

void EtcdWatch::WriteNext() {
  const KeyRange& range = ranges_[written_++];
  etcdserverpb::WatchCreateRequest& create = *request_.mutable_create_request();
  create.set_key(range.begin);
  create.set_range_end(range.end);
  create.set_start_revision(revision_ + 1);
  StartWrite(&request_);
}

void EtcdWatch::OnWriteDone(bool ok) {
  if (ok && written_ < ranges_.size()) WriteNext();
}

void EtcdWatch::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone says why
  if (response_.canceled()) {
    const std::string reason = response_.compact_revision() != 0
                                   ? absl::StrCat("revision ", revision_, " has been compacted")
                                   : response_.cancel_reason();
    End(absl::UnavailableError("etcd has ended the watch: " + reason));
  } else if (response_.events_size() > 0) {
    const std::lock_guard lock(mutex_);
    news_ = true;
    changed_.notify_all();
  }
  StartRead(&response_);
}

void EtcdWatch::OnDone(const grpc::Status& status) {
  End(absl::UnavailableError("etcd has ended the watch: " + status.error_message()));
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

void EtcdWatch::End(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (ended_.ok()) ended_ = status;
  changed_.notify_all();
}

}  // namespace winnow
