#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/simulation/runtime/runtime.h"

namespace winnow::simulation {

// Something between two processes that breaks when one of them dies or the connection between them does.
class Connection {
 public:
  Connection(Process* client, Process* server) : client(client), server(server) {}
  virtual ~Connection() = default;
  // Neither end can reach the other any more. Each end that lives is told. In an event; repeated calls do nothing.
  virtual void Break() = 0;
  virtual bool over() const = 0;

  Process* const client;
  Process* server;  // null until the first message has arrived there
};

// What lies between processes: latencies, partitions, broken connections. Links are between names of processes, so that
// a process that is started again is where the one before it was.
class Network {
 public:
  explicit Network(Runtime* runtime) : runtime_(runtime) {}

  Runtime& runtime() { return *runtime_; }

  // One way.
  Nanos Latency();
  // Nothing arrives at `to` from `from` until then. Messages of connections arrive later, as TCP sends them again;
  // connections that are silent for as long as a keepalive break.
  void BlockLink(const std::string& from, const std::string& to, Nanos until);
  // 0: it is open.
  Nanos BlockedUntil(const Process& from, const Process& to) const;
  // All connections between the two break.
  void ResetConnections(const std::string& a, const std::string& b);
  // kill -9: the kernel closes its connections.
  void Kill(Process* process);
  // Connections with a process that has been silent for a keepalive break.
  void BreakSilent(Process* process);

  void Add(std::weak_ptr<Connection> connection);

  double extra_latency_chance = 0;  // of a message
  Nanos extra_latency = 0;

 private:
  void BreakIf(const std::function<bool(const Connection&)>& matches, Nanos delay);

  Runtime* const runtime_;
  std::map<std::pair<std::string, std::string>, Nanos> blocked_;  // until when
  std::vector<std::weak_ptr<Connection>> connections_;
};

// One direction of a connection: what is sent arrives in order, each once, or never.
class Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  Pipe(Network* network, Process* from) : network_(network), from_(from) {}

  // Runs `arrive` in the process that `to` names by then, in an event.
  void Send(Process* to, std::function<void()> arrive);

 private:
  void Arrive(Process* to);

  Network* const network_;
  Process* const from_;
  Nanos last_ = 0;
  std::deque<std::function<void()>> under_way_;
};

}  // namespace winnow::simulation
