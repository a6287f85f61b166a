#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/discovery/etcd_client.h"
#include "common/discovery/registry_url.h"

namespace winnow {

// Values by name that all processes which share them agree on: the registry keeps them, and tells each process of those
// that another one has set. They outlive the processes.
//
// While the registry is away, values known last hold, and what is set here holds here; it is published when the
// registry is back, and replaces what is there. A value that the registry has lost, as with its data, is published by
// whoever knows it. Values are replaced and never taken out, so that an absent one is always a lost one.
class SharedValues {
 public:
  using Values = std::map<std::string, std::string>;
  struct Options {
    RegistryUrl registry;
    TlsFiles tls = {};   // with etcds://
    std::string folder;  // what their keys begin with, up to their name
    // Called with all values after each change, one call at a time, the newest ones last; from the thread of the shared
    // values or of Set.
    std::function<void(const Values&)> on_values;
  };

  explicit SharedValues(Options options);
  ~SharedValues();

  // The values hold here when it returns. OK: the registry has them, too. UNAVAILABLE says why that is still to come.
  absl::Status Set(const Values& values);
  // The registry has been read, or every one of its members has been asked in vain.
  bool IsSettled() const;

 private:
  void Run();
  // Until the connection to that member fails, an error, or until the end, OK.
  absl::Status Session(EtcdClient& client);
  // Publishes what is to be, reads all, and tells. Returns the revision of what was read.
  absl::StatusOr<int64_t> Exchange(EtcdClient& client);
  absl::StatusOr<etcdserverpb::RangeResponse> Read(EtcdClient& client) const;
  absl::Status Put(EtcdClient& client, const std::string& name, const std::string& value, bool only_if_absent) const;
  void Tell();
  bool HasUnpublished() const;
  bool stopping() const;

  const Options options_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;

  std::mutex telling_;  // taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool stop_ = false;
  Values values_;       // as they hold here
  Values unpublished_;  // of them, those that were set here and are not in the registry yet
  size_t failed_members_ = 0;
  bool read_ = false;
  absl::Status away_;

  std::thread thread_;
};

}  // namespace winnow
