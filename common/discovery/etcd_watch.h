#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "winnow/etcd/etcd.grpc.pb.h"

namespace winnow {

// Keys from `begin` up to, but without, `end`; `begin` alone where that is empty.
struct KeyRange {
  std::string begin, end;
};

// Tells that something has changed in some ranges of keys since a revision; what, is to be read. gRPC's threads feed
// it.
class EtcdWatch final : private grpc::ClientBidiReactor<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse> {
 public:
  using Clock = std::chrono::steady_clock;

  // From the changes after `revision` on. At least one range.
  EtcdWatch(etcdserverpb::Watch::Stub* stub, std::vector<KeyRange> ranges, int64_t revision);
  // Cancels it and waits for its end.
  ~EtcdWatch() override;

  // Until something changes or `until`. True when there were changes since the last call. An error when the watch has
  // ended: changes may have been missed.
  absl::StatusOr<bool> Wait(Clock::time_point until);

 private:
  void WriteNext();
  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void End(const absl::Status& status);

  const std::vector<KeyRange> ranges_;
  const int64_t revision_;
  grpc::ClientContext context_;
  size_t written_ = 0;                    // of the ranges; gRPC's
  etcdserverpb::WatchRequest request_;    // gRPC's while a write is under way
  etcdserverpb::WatchResponse response_;  // gRPC's while a read is under way

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool news_ = false;
  bool done_ = false;
  absl::Status ended_;
};

}  // namespace winnow
