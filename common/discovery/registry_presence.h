#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/discovery/etcd_client.h"
#include "common/discovery/etcd_watch.h"
#include "common/discovery/published_record.h"
#include "common/discovery/registry_record.h"
#include "common/discovery/registry_url.h"

namespace winnow {

// Keeps a process in the registry, under a lease, and tells it of the routers there.
//
// Nothing depends on the registry staying there. While it is away the records and routers known last hold; it is tried
// again with growing pauses, member after member, and when it is back, with or without its data, everything is
// published again. A lease that has ended, because this process was stopped or cut off, is replaced in the same way,
// unless a later start of the process has taken its place: this one is fenced then.
class RegistryPresence {
 public:
  struct Options {
    RegistryUrl registry;
    TlsFiles tls = {};  // with etcds://
    std::string cluster;
    std::chrono::seconds lease{10};
    // What to publish, asked until it answers: an error other than UNAVAILABLE is final. `endpoint` is the numeric
    // address of the registry, from which others may be expected to come.
    std::function<absl::StatusOr<std::vector<RegistryRecord>>(const HostPort& endpoint)> records;
    // If set, called with the routers of the cluster after each change, from the presence's thread. At that moment the
    // process's own records stood: a fenced one is told nothing.
    std::function<void(std::vector<HostPort> routers)> on_routers = nullptr;
    // Called from the presence's thread, at most once: ABORTED when the process is fenced, or the error of `records`.
    // Nothing is published or told any more.
    std::function<void(const absl::Status& status)> on_refused = nullptr;
  };

  struct State {
    bool connected = false;
    double away_seconds = 0;  // since when it has not been connected; 0 while it is
    uint64_t lost_leases = 0;
    std::vector<HostPort> routers;  // as known last; with on_routers
  };

  explicit RegistryPresence(Options options);
  ~RegistryPresence() { Leave(); }

  // Takes the records out. Nothing is called any more when this returns.
  void Leave();
  State state() const;
  // False while a lease may have ended unnoticed, as when this process has been stopped: a later start may have taken
  // its place. True again when the registry has been read, or none of its members could be.
  bool Holds() const;

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  // Until the connection to that member fails, an error that says why, or until Stop, OK.
  absl::Status Session(EtcdClient& client, const HostPort& endpoint);
  absl::Status PrepareRecords(const HostPort& endpoint);
  // Renews the lease, or gets another.
  absl::Status KeepLease(EtcdClient& client);
  // Publishes what is not there, and reads the routers at a revision at which all of it was. Returns that revision.
  absl::StatusOr<int64_t> PublishAndRead(EtcdClient& client);
  std::vector<KeyRange> Watched() const;
  void Connected(const std::string& address);
  // The lease was renewed by what was asked at this time.
  void Renewed(Clock::time_point asked);
  void Away(const absl::Status& why);
  bool stopping() const;

  const Options options_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;

  // The thread's own.
  std::vector<PublishedRecord> records_;
  int64_t lease_ = 0;  // 0: none
  std::chrono::seconds ttl_;
  Clock::time_point next_complaint_{};

  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  // Guarded by mutex_.
  bool stop_ = false;
  State state_;
  Clock::time_point held_until_{};  // of the latest lease; 0 before the first one
  size_t failed_members_ = 0;       // that have been asked in vain since the process was connected last
  Clock::time_point away_since_ = Clock::now();

  std::thread thread_;
};

}  // namespace winnow
