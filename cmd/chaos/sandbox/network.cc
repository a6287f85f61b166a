#include "cmd/chaos/sandbox/network.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_format.h"
#include "cmd/chaos/sandbox/mounts.h"
#include "cmd/chaos/sandbox/run_tool.h"
#include "common/base/check.h"
#include "common/base/json.h"

namespace winnow::chaos {
namespace {

constexpr char kRouter[] = "the-router";
constexpr char kDevice[] = "eth0";
// What a throttled cable takes at once, and how long a packet may wait in it.
constexpr double kBurst_s = 0.01;
constexpr int64_t kLeastBurst = 16 << 10;
constexpr char kLongestWait[] = "200ms";

using Arguments = std::vector<std::string>;

absl::Status Ip(Arguments arguments) {
  arguments.insert(arguments.begin(), "ip");
  return RunTool(arguments).status();
}

// Processes of one boot of one machine pass each other by the network, through shared memory: each host has another.
constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
std::string BootIdFile(const std::string& host) {
  return absl::StrCat(Network::kFolder, "/boot-id-", host);
}

// Where the two ends of a host's cable are.
struct CableEnd {
  std::string host, device;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Create(const std::vector<std::string>& hosts) {
  WINNOW_RETURN_IF_ERROR(FindTool("ip").status());
  WINNOW_RETURN_IF_ERROR(FindTool("tc").status());
  mkdir(kFolder, 0755);
  // `ip` keeps the names of namespaces there: those of this process are nobody else's.
  WINNOW_RETURN_IF_ERROR(MountMemory(kFolder, 0));
  WINNOW_RETURN_IF_ERROR(Ip({"netns", "add", kRouter}));
  WINNOW_RETURN_IF_ERROR(
      RunTool({"ip", "netns", "exec", kRouter, "/bin/sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"}).status());
  std::vector<Host> all;
  const auto add = [&](const std::string& name) {
    const size_t number = all.size() + 1;
    all.push_back({name, absl::StrCat("10.213.", number, ".2"), absl::StrCat("10.213.", number, ".1"),
                   absl::StrCat("host", number)});
  };
  add(kClients);
  for (const std::string& host : hosts) add(host);
  std::unique_ptr<Network> network(new Network(std::move(all)));
  for (const Host& host : network->hosts_) WINNOW_RETURN_IF_ERROR(network->Connect(host));
  return network;
}

absl::Status Network::Connect(const Host& host) const {
  std::ofstream(BootIdFile(host.name)) << absl::StrFormat("%08x-0000-4000-8000-%012x\n", getpid(),
                                                          static_cast<uint64_t>(&host - hosts_.data()));
  WINNOW_RETURN_IF_ERROR(Ip({"netns", "add", host.name}));
  WINNOW_RETURN_IF_ERROR(Ip({"-n", host.name, "link", "set", "lo", "up"}));
  WINNOW_RETURN_IF_ERROR(
      Ip({"-n", host.name, "link", "add", kDevice, "type", "veth", "peer", "name", host.cable, "netns", kRouter}));
  WINNOW_RETURN_IF_ERROR(Ip({"-n", host.name, "addr", "add", host.address + "/24", "dev", kDevice}));
  WINNOW_RETURN_IF_ERROR(Ip({"-n", kRouter, "addr", "add", host.gateway + "/24", "dev", host.cable}));
  WINNOW_RETURN_IF_ERROR(Ip({"-n", host.name, "link", "set", kDevice, "up"}));
  WINNOW_RETURN_IF_ERROR(Ip({"-n", kRouter, "link", "set", host.cable, "up"}));
  return Ip({"-n", host.name, "route", "add", "default", "via", host.gateway});
}

const Network::Host& Network::Find(const std::string& name) const {
  const auto host = std::find_if(hosts_.begin(), hosts_.end(), [&](const Host& each) { return each.name == name; });
  WINNOW_CHECK(host != hosts_.end());
  return *host;
}

const std::string& Network::AddressOf(const std::string& host) const {
  return Find(host).address;
}

absl::StatusOr<NetworkNamespace> Network::NamespaceOf(const std::string& host) const {
  return NetworkNamespace::Open(absl::StrCat(kFolder, "/", host));
}

absl::Status Network::EnterAsClient() const {
  WINNOW_ASSIGN_OR_RETURN(const NetworkNamespace clients, NamespaceOf(kClients));
  return clients.Enter();
}

absl::StatusOr<std::vector<std::string>> Network::CommandPrefix(const std::string& host) const {
  WINNOW_ASSIGN_OR_RETURN(const std::string ip, FindTool("ip"));
  const std::string script = absl::StrCat("mount --bind ", BootIdFile(host), " ", kBootId, " && exec \"$@\"");
  return std::vector<std::string>{ip, "netns", "exec", host, "/bin/sh", "-c", script, host};
}

absl::Status Network::Cut(const std::string& one, const std::string& other) const {
  WINNOW_RETURN_IF_ERROR(
      Ip({"-n", kRouter, "rule", "add", "from", AddressOf(one), "to", AddressOf(other), "blackhole"}));
  return Ip({"-n", kRouter, "rule", "add", "from", AddressOf(other), "to", AddressOf(one), "blackhole"});
}

absl::Status Network::Heal(const std::string& one, const std::string& other) const {
  const absl::Status first =
      Ip({"-n", kRouter, "rule", "del", "from", AddressOf(one), "to", AddressOf(other), "blackhole"});
  const absl::Status second =
      Ip({"-n", kRouter, "rule", "del", "from", AddressOf(other), "to", AddressOf(one), "blackhole"});
  return first.ok() ? second : first;
}

absl::Status Network::Throttle(const std::string& host, int64_t bits_per_s) const {
  const int64_t burst = std::max(kLeastBurst, static_cast<int64_t>(static_cast<double>(bits_per_s) / 8 * kBurst_s));
  for (const CableEnd& end : {CableEnd{host, kDevice}, CableEnd{kRouter, Find(host).cable}}) {
    WINNOW_RETURN_IF_ERROR(
        RunTool({"tc", "-n", end.host, "qdisc", "add", "dev", end.device, "root", "tbf", "rate",
                 absl::StrCat(bits_per_s, "bit"), "burst", absl::StrCat(burst), "latency", kLongestWait})
            .status());
  }
  return absl::OkStatus();
}

absl::Status Network::Unthrottle(const std::string& host) const {
  absl::Status status;
  for (const CableEnd& end : {CableEnd{host, kDevice}, CableEnd{kRouter, Find(host).cable}}) {
    status.Update(RunTool({"tc", "-n", end.host, "qdisc", "del", "dev", end.device, "root"}).status());
  }
  return status;
}

absl::StatusOr<Network::Traffic> Network::TrafficOf(const std::string& host) const {
  Traffic traffic;
  for (const CableEnd& end : {CableEnd{host, kDevice}, CableEnd{kRouter, Find(host).cable}}) {
    WINNOW_ASSIGN_OR_RETURN(const std::string text,
                            RunTool({"tc", "-n", end.host, "-s", "-j", "qdisc", "show", "dev", end.device}));
    const auto list = ParseJson(text);
    if (!list.is_array() || list.empty()) return absl::InternalError("cannot read what tc says: " + text);
    traffic.bytes += list[0].value("bytes", int64_t{0});
    traffic.held_back += list[0].value("overlimits", int64_t{0});
  }
  return traffic;
}

}  // namespace winnow::chaos
