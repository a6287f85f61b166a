#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/discovery/etcd_client.h"
#include "common/discovery/registry_url.h"
#include "tests/support/temp_dir.h"

namespace winnow {

// Debian's etcd on free ports of loopback, ended with the test. It keeps its ports and its data from one start to the
// next.
class EtcdServer {
 public:
  static bool IsInstalled();

  // With files it serves TLS alone, to clients with a certificate of the same authorities.
  explicit EtcdServer(TlsFiles tls = {});
  EtcdServer(const EtcdServer&) = delete;
  ~EtcdServer();

  // Fails the test when it does not answer.
  void Start();
  void Kill();  // -9
  void Signal(int signal_number) const;
  // While it does not run: the next start finds nothing.
  void LoseData();

  RegistryUrl url() const;
  // Values by key, of keys that begin with `prefix`.
  std::vector<std::pair<std::string, std::string>> Values(const std::string& prefix = "winnow/") const;
  void Put(const std::string& key, const std::string& value) const;
  void Delete(const std::string& prefix) const;

 private:
  EtcdClient Client() const;

  const TlsFiles tls_;
  const TempDir folder_;
  const uint16_t client_port_, peer_port_;
  pid_t pid_ = -1;
};

}  // namespace winnow
