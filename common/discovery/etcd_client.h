#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/config/parse_value.h"
#include "common/tls/tls_files.h"
#include "grpcpp/security/credentials.h"
#include "winnow/etcd/etcd.grpc.pb.h"

namespace winnow {

// For connections to etcd: without files in clear, otherwise encrypted, with the process's certificate where there is
// one. The server must have a certificate of the authorities for the name or address that it was asked at; it need not
// be of a role of the cluster.
std::shared_ptr<grpc::ChannelCredentials> EtcdCredentials(const TlsFiles& files);

// The end of the range of all keys that begin with `prefix`, which is not empty.
std::string EndOfPrefix(std::string prefix);

// Calls to one member of an etcd cluster. Each waits for its answer, at most kCallTimeout. Every error is UNAVAILABLE:
// another member may answer, or the same one later.
class EtcdClient {
 public:
  static constexpr std::chrono::milliseconds kCallTimeout{2000};

  EtcdClient(const HostPort& endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

  struct Granted {
    int64_t id = 0;
    std::chrono::seconds ttl{};
  };
  absl::StatusOr<Granted> Grant(std::chrono::seconds ttl);
  // How long the lease goes on from now; 0 when there is none of that id any more.
  absl::StatusOr<std::chrono::seconds> KeepAlive(int64_t lease);
  // What was put under the lease is gone then.
  absl::Status Revoke(int64_t lease);

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Commit(const etcdserverpb::TxnRequest& request);

  // For EtcdWatch.
  etcdserverpb::Watch::Stub* watches() { return watches_.get(); }
  const std::string& address() const { return address_; }

 private:
  absl::Status StatusOf(const grpc::Status& status) const;

  const std::string address_;
  std::unique_ptr<etcdserverpb::KV::Stub> keys_;
  std::unique_ptr<etcdserverpb::Lease::Stub> leases_;
  std::unique_ptr<etcdserverpb::Watch::Stub> watches_;
};

}  // namespace winnow
