#pragma once
#include <string>

#include "common/config/fields.h"
#include "common/rpc/credentials.h"

namespace winnow {

// How a command of the client side meets a cluster with TLS.
struct ClientSecurity {
  TlsFiles files;

  void Declare(Fields& fields) {
    fields.File("tls-ca", &files.authorities,
                "Certificates (PEM) of those who sign the cluster's. Empty = the server has no TLS.");
    fields.File("tls-cert", &files.certificate, "Certificate (PEM) of the caller, where one is needed.");
    fields.File("tls-key", &files.key, "Key (PEM) of --tls-cert.");
  }
  absl::StatusOr<Credentials> Load() const {
    return files.empty() ? absl::StatusOr<Credentials>(Credentials()) : Credentials::Load(files);
  }
};

}  // namespace winnow
