#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/config/parse_value.h"
#include "common/rpc/membership_client.h"

namespace winnow {

// Keeps a rank in the tables of all routers, so that any of them may send it requests: one MembershipClient for each
// address that the names of the routers have, found anew every few seconds, and for each that SetDiscovered names. The
// rank serves while it does by the word of any router.
class RouterMemberships {
 public:
  // `options.router` is not read. on_serving and on_refused are called as if there were one router; a refusal by any is
  // one by the cluster.
  RouterMemberships(std::vector<HostPort> routers, MembershipClient::Options options);
  // Leaves all of them.
  ~RouterMemberships();

  // Routers beside the named ones, in the place of those of the last call. One that is not there any more is left once
  // it is silent. Any thread.
  void SetDiscovered(std::vector<HostPort> routers);

 private:
  struct Member {
    bool serving = false;
    std::unique_ptr<MembershipClient> client;
  };

  void Run();
  // Numeric addresses, none twice. Of a name with addresses of both families those of one: the other family's are the
  // same routers.
  std::vector<HostPort> Resolve();
  void Follow(const std::vector<HostPort>& addresses);
  std::unique_ptr<MembershipClient> Join(const HostPort& router);
  void SetServing(const std::string& address, bool serving);
  void Refused(const absl::Status& status);

  const std::vector<HostPort> routers_;
  const MembershipClient::Options options_;

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::vector<HostPort> discovered_;
  bool discovery_changed_ = false;
  std::map<std::string, Member> members_;  // by address
  bool serving_ = false;
  bool refused_ = false;
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace winnow
