#pragma once
#include <memory>

#include "common/base/status.h"
#include "common/tls/tls_files.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace winnow {

// How the gRPC servers and channels of a process show who they are, and find out whom they talk to. Copies share files
// that are watched: changed certificates serve the connections that are made from then on, within seconds.
//
// With files, everything is encrypted. A server takes clients with a certificate of the authorities, or without any,
// and each call is held to CheckCaller. A channel takes servers of the authorities alone that CheckServer lets pass;
// their addresses do not matter.
class Credentials {
 public:
  // Nothing is encrypted, and nobody is asked who they are.
  Credentials() = default;
  // For a process that serves: certificate, key and authorities; for a client: at least the authorities.
  // INVALID_ARGUMENT says what is missing or wrong.
  static absl::StatusOr<Credentials> Load(const TlsFiles& files);

  bool encrypted() const { return files_ != nullptr; }
  std::shared_ptr<grpc::ChannelCredentials> ForChannels() const;
  std::shared_ptr<grpc::ServerCredentials> ForServer() const;

 private:
  struct Watched;
  std::shared_ptr<const Watched> files_;
};

}  // namespace winnow
