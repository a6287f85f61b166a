#include "tools/simulation/network/network.h"

#include <algorithm>

namespace winnow::simulation {

Nanos Network::Latency() {
  Nanos latency = 20 * kMicrosecond + static_cast<Nanos>(runtime_->Random(60 * kMicrosecond));
  if (extra_latency > 0 && runtime_->Chance(extra_latency_chance)) {
    latency += static_cast<Nanos>(runtime_->Random(static_cast<uint64_t>(extra_latency)));
  }
  return latency;
}

void Network::BlockLink(const std::string& from, const std::string& to, Nanos until) {
  Nanos& blocked = blocked_[{from, to}];
  blocked = std::max(blocked, until);
}

Nanos Network::BlockedUntil(const Process& from, const Process& to) const {
  const auto found = blocked_.find({from.name, to.name});
  return found == blocked_.end() || found->second <= runtime_->now() ? 0 : found->second;
}

void Network::BreakIf(const std::function<bool(const Connection&)>& matches, Nanos delay) {
  std::erase_if(connections_, [](const auto& weak) {
    const auto connection = weak.lock();
    return connection == nullptr || connection->over();
  });
  for (const auto& weak : connections_) {
    const auto connection = weak.lock();
    if (!matches(*connection)) continue;
    Nanos when = runtime_->now() + delay;
    if (connection->server != nullptr) {
      when = std::max({when, BlockedUntil(*connection->client, *connection->server),
                       BlockedUntil(*connection->server, *connection->client)});
    }
    runtime_->At(when, [connection] { connection->Break(); });
  }
}

void Network::ResetConnections(const std::string& a, const std::string& b) {
  BreakIf(
      [&](const Connection& connection) {
        if (connection.server == nullptr) return false;
        const std::string &client = connection.client->name, &server = connection.server->name;
        return (client == a && server == b) || (client == b && server == a);
      },
      0);
}

void Network::Kill(Process* process) {
  runtime_->Kill(process);
  BreakIf([&](const Connection& connection) { return connection.client == process || connection.server == process; },
          Latency());
}

void Network::BreakSilent(Process* process) {
  BreakIf([&](const Connection& connection) { return connection.client == process || connection.server == process; },
          0);
}

void Network::Add(std::weak_ptr<Connection> connection) {
  connections_.push_back(std::move(connection));
}

void Pipe::Send(Process* to, std::function<void()> arrive) {
  Runtime& runtime = network_->runtime();
  last_ = std::max(last_ + 1, runtime.now() + network_->Latency());
  under_way_.push_back(std::move(arrive));
  runtime.At(last_, to, [self = shared_from_this(), to] { self->Arrive(to); });
}

void Pipe::Arrive(Process* to) {
  Runtime& runtime = network_->runtime();
  if (const Nanos until = network_->BlockedUntil(*from_, *to); until > 0) {
    const Nanos again = until + static_cast<Nanos>(runtime.Random(200 * kMillisecond));
    last_ = std::max(last_, again);
    runtime.At(again, to, [self = shared_from_this(), to] { self->Arrive(to); });
    return;
  }
  const std::function<void()> arrive = std::move(under_way_.front());
  under_way_.pop_front();
  arrive();
}

}  // namespace winnow::simulation
