#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cmd/chaos/sandbox/network_namespace.h"
#include "common/base/status.h"

namespace winnow::chaos {

// Hosts on one machine: network namespaces, each with one address, and cables between each of them and one router.
// Everything is in namespaces of this process, and gone with it; the machine's own network is not touched. What is
// started on different hosts takes them for different machines (their boot ids differ), and uses no shared memory.
class Network {
 public:
  // The process must have mounts of its own (TakeOwnMounts). One more host is made, for clients. An error says what
  // the machine does not have or allow.
  static absl::StatusOr<std::unique_ptr<Network>> Create(const std::vector<std::string>& hosts);

  // Takes the calling thread, and those that it starts from then on, to the clients' host.
  absl::Status EnterAsClient() const;
  const std::string& AddressOf(const std::string& host) const;
  absl::StatusOr<NetworkNamespace> NamespaceOf(const std::string& host) const;
  // What to put before a command that shall run there.
  absl::StatusOr<std::vector<std::string>> CommandPrefix(const std::string& host) const;

  // Packets between the two get lost without a word, as in a partition; both still reach the others.
  absl::Status Cut(const std::string& one, const std::string& other) const;
  absl::Status Heal(const std::string& one, const std::string& other) const;

  // Both directions of the host's cable carry no more than that.
  absl::Status Throttle(const std::string& host, int64_t bits_per_s) const;
  absl::Status Unthrottle(const std::string& host) const;
  // What has gone through a throttled cable, and how often it had to wait.
  struct Traffic {
    int64_t bytes = 0, held_back = 0;
  };
  absl::StatusOr<Traffic> TrafficOf(const std::string& host) const;

  static constexpr char kClients[] = "clients";
  // A folder in memory that only this process and those that it starts see.
  static constexpr char kFolder[] = "/run/netns";

 private:
  struct Host {
    std::string name, address, gateway, cable;
  };
  explicit Network(std::vector<Host> hosts) : hosts_(std::move(hosts)) {}
  const Host& Find(const std::string& name) const;
  absl::Status Connect(const Host& host) const;

  std::vector<Host> hosts_;
};

}  // namespace winnow::chaos
