// Faults of the links between processes, which have networks of their own.
#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cmd/chaos/faults/fault.h"
#include "cmd/chaos/sandbox/link_probe.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectLimit{300};
constexpr milliseconds kPause{200};
constexpr milliseconds kHealLimit{5000};
// The rate is measured by what a throttled link carries in this time.
constexpr double kProbe_s = 0.25;
constexpr int64_t kLeastProbeBytes = 64 << 10;
constexpr milliseconds kProbeLimit{5000};
// Beside its rate a link lets its burst through.
constexpr double kMostOfRate = 1.25;

int CountConnecting(const NetworkNamespace& from, const std::vector<Member>& peers, milliseconds limit) {
  int connecting = 0;
  for (const Member& peer : peers) connecting += Connects(from, peer.metrics, limit);
  return connecting;
}

std::string RateText(const absl::StatusOr<double>& bits_per_s) {
  return bits_per_s.ok() ? absl::StrFormat("%.1f Mbit/s", *bits_per_s / 1e6)
                         : std::string(bits_per_s.status().message());
}

}  // namespace

Effect CutLinks(const Strike& strike, const Network& network, const std::stop_token& stop) {
  const std::string& target = strike.target->rank;
  const absl::StatusOr<NetworkNamespace> from = network.NamespaceOf(target);
  if (!from.ok()) return {.seen = false, .evidence = std::string(from.status().message())};
  const int num_peers = static_cast<int>(strike.peers.size());
  const int before = CountConnecting(*from, strike.peers, milliseconds(2000));
  std::vector<std::string> names, errors;
  for (const Member& peer : strike.peers) {
    names.push_back(peer.rank);
    const absl::Status cut = strike.pretend ? absl::OkStatus() : network.Cut(target, peer.rank);
    if (!cut.ok()) errors.emplace_back(cut.message());
  }
  int tried = 0, answered = 0;
  {
    const absl::Cleanup heal = [&] {
      for (const Member& peer : strike.peers) {
        const absl::Status healed = strike.pretend ? absl::OkStatus() : network.Heal(target, peer.rank);
        if (!healed.ok()) errors.emplace_back(healed.message());
      }
    };
    const Clock::time_point until = Clock::now() + strike.lasts;
    do {
      tried += num_peers;
      answered += CountConnecting(*from, strike.peers, kConnectLimit);
    } while (Clock::now() + kPause < until && SleepFor(kPause, stop));
    if (Clock::now() < until) SleepFor(std::chrono::duration_cast<milliseconds>(until - Clock::now()), stop);
  }
  const Clock::time_point healed = Clock::now();
  int after = 0;
  while ((after = CountConnecting(*from, strike.peers, kConnectLimit)) < num_peers &&
         Clock::now() - healed < kHealLimit && SleepFor(kPause, stop)) {
  }
  std::string text = absl::StrFormat(
      "cut off from %s: of %d connections tried meanwhile %d were answered (before: %d of %d, %s behind it: %d)",
      absl::StrJoin(names, ", "), tried, answered, before, num_peers, TimeText(Clock::now() - healed), after);
  for (const std::string& error : errors) absl::StrAppend(&text, "; ", error);
  return {.seen = before == num_peers && tried > 0 && answered == 0 && errors.empty(), .evidence = std::move(text)};
}

Effect ThrottleLink(const Strike& strike, const Network& network, const std::stop_token& stop) {
  const std::string& target = strike.target->rank;
  const auto rate = static_cast<double>(strike.bits_per_s);
  const auto bytes = std::max(kLeastProbeBytes, static_cast<int64_t>(rate / 8 * kProbe_s));
  const absl::StatusOr<NetworkNamespace> from = network.NamespaceOf(target);
  const absl::StatusOr<NetworkNamespace> to = network.NamespaceOf(Network::kClients);
  if (!from.ok() || !to.ok()) return {.seen = false, .evidence = "its network is not there any more"};
  const auto measure = [&] {
    return MeasureRate(*from, *to, network.AddressOf(Network::kClients), bytes, kProbeLimit);
  };
  const absl::StatusOr<double> before = measure();
  const Clock::time_point until = Clock::now() + strike.lasts;
  const absl::Status throttled = strike.pretend ? absl::OkStatus() : network.Throttle(target, strike.bits_per_s);
  const absl::StatusOr<double> meanwhile = measure();
  if (Clock::now() < until) SleepFor(std::chrono::duration_cast<milliseconds>(until - Clock::now()), stop);
  const absl::StatusOr<Network::Traffic> traffic = network.TrafficOf(target);
  const absl::Status removed = strike.pretend ? absl::OkStatus() : network.Unthrottle(target);
  std::string text = absl::StrFormat("its link carried %s (before: %s)", RateText(meanwhile), RateText(before));
  if (traffic.ok() && !strike.pretend) {
    absl::StrAppendFormat(&text, "; %.1f MB passed, %d of them for the measurement, and waited %d times",
                          static_cast<double>(traffic->bytes) / 1e6, bytes / 1'000'000, traffic->held_back);
  }
  for (const absl::Status& status : {throttled, removed}) {
    if (!status.ok()) absl::StrAppend(&text, "; ", status.message());
  }
  const bool was_slower = before.ok() && meanwhile.ok() && *meanwhile < *before && *meanwhile <= kMostOfRate * rate;
  return {.seen = was_slower && throttled.ok() && removed.ok(), .evidence = std::move(text)};
}

}  // namespace winnow::chaos
