// Faults that end a process.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>

#include <optional>

#include "cmd/chaos/faults/fault.h"
#include "cmd/chaos/sandbox/network_namespace.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kEndLimit{30'000};  // a signal waits for the core on a starved machine
constexpr milliseconds kRestartLimit{90'000};

// Another start of the rank that has registered; null: none within the limit.
std::optional<Member> AnotherStart(const Member& before, const Cluster& cluster, const std::stop_token& stop) {
  const Clock::time_point until = Clock::now() + kRestartLimit;
  while (Clock::now() < until && !stop.stop_requested()) {
    const Members members = cluster.Find(milliseconds(500));
    const auto now = members.find(before.rank);
    if (now != members.end() && (now->second.process.pid() != before.process.pid() ||
                                 now->second.process.start_s() != before.process.start_s())) {
      return now->second;
    }
    SleepFor(milliseconds(50), stop);
  }
  return std::nullopt;
}

// Listens at the address, which a process has just left; -1 when somebody was faster.
int TakeAddress(const HostPort& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(address.port);
  inet_pton(AF_INET, address.host.c_str(), &name.sin_addr);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0 && listen(fd, 1) == 0) return fd;
  UniqueFd{fd}.Reset();
  return -1;
}

// Of a process that only seems to be killed nobody waits for the end.
milliseconds EndLimitOf(const Strike& strike) {
  return strike.pretend ? milliseconds(0) : kEndLimit;
}

Effect NoEnd(const Member& member) {
  const absl::StatusOr<ProcessFigures> figures = member.process.Figures();
  return {.seen = false,
          .evidence = absl::StrCat(member.Name(), " is there as before",
                                   figures.ok() ? absl::StrCat(", in state ", std::string(1, figures->state)) : "")};
}

}  // namespace

Effect AwaitAnotherStart(std::string how, Clock::time_point since, const Strike& strike, const Cluster& cluster,
                         const std::stop_token& stop) {
  const std::optional<Member> next = AnotherStart(*strike.target, cluster, stop);
  if (!next) {
    return {.seen = false,
            .evidence = absl::StrCat(how, "; no other start of ", strike.target->rank, " has registered within ",
                                     TimeText(kRestartLimit))};
  }
  return {.seen = true,
          .evidence = absl::StrCat(how, "; pid ", next->process.pid(), " has registered as ", next->rank, " after ",
                                   TimeText(Clock::now() - since))};
}

Effect Kill(const Strike& strike, const Cluster& cluster, const std::stop_token& stop) {
  const Clock::time_point begin = Clock::now();
  if (!strike.pretend && !strike.target->process.Signal(SIGKILL).ok()) return NoEnd(*strike.target);
  if (!strike.target->process.AwaitEnd(EndLimitOf(strike))) return NoEnd(*strike.target);
  return AwaitAnotherStart(absl::StrCat("gone after ", TimeText(Clock::now() - begin)), begin, strike, cluster, stop);
}

Effect TakePort(const Strike& strike, const Cluster& cluster, const std::stop_token& stop) {
  const Member& target = *strike.target;
  const absl::StatusOr<NetworkNamespace> network = NetworkNamespace::Of(target.process.pid());
  if (!strike.pretend && !target.process.Signal(SIGKILL).ok()) return NoEnd(target);
  if (!target.process.AwaitEnd(EndLimitOf(strike))) return NoEnd(target);
  UniqueFd taken;
  if (network.ok()) network->Run([&] { taken = UniqueFd(TakeAddress(target.metrics)); }).IgnoreError();
  const std::string where = target.metrics.ToString();
  if (taken.get() < 0) return {.seen = false, .evidence = where + " was taken by another before it could be held"};
  SleepFor(strike.lasts, stop);
  const bool was_back = cluster.Find(milliseconds(500)).contains(target.rank);
  std::string text = absl::StrCat("gone; ", where, " held for ", TimeText(strike.lasts), ", ",
                                  was_back ? "the rank came back elsewhere meanwhile" : "nobody registered meanwhile");
  taken.Reset();
  const Clock::time_point released = Clock::now();
  const std::optional<Member> next = AnotherStart(target, cluster, stop);
  if (!next) return {.seen = false, .evidence = absl::StrCat(text, "; no other start has registered since")};
  return {.seen = true,
          .evidence = absl::StrCat(text, "; pid ", next->process.pid(), " was there ",
                                   TimeText(Clock::now() - released), " later")};
}

}  // namespace winnow::chaos
