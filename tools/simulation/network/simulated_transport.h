#pragma once
#include <map>
#include <memory>

#include "tools/simulation/network/network.h"
#include "transport/transport.h"

namespace winnow::simulation {

// What the data plane's links do to frames, as chances for each. The links of the product lose none without failing,
// which is what their contract (transport/transport.h) asks of them: where one is lost here and no later one shows it,
// the connection between the two breaks within two seconds.
struct FrameFaults {
  double drop = 0;
  double repeat = 0;
  double reorder = 0;
  double corrupt = 0;
  double late = 0;  // by seconds
};

// The data plane's links of the whole cluster.
class FrameNetwork {
 public:
  explicit FrameNetwork(Network* network) : network_(network) {}

  // Frames between simulated processes, sealed, numbered and checked by the product's own framing. For the running
  // thread's process.
  std::unique_ptr<Transport> NewTransport(uint64_t incarnation);

  FrameFaults faults;
  struct Counts {
    uint64_t frames = 0, dropped = 0, repeated = 0, reordered = 0, corrupted = 0, late = 0;
  } counts;

 private:
  friend class SimulatedTransport;
  friend class SimulatedChannel;
  struct Wire {
    std::string header, payload;
  };
  void BreakSoon(const Process& from, const Process& to);
  void Send(class SimulatedTransport* from, uint64_t to, Wire wire, Nanos& last);

  Network* const network_;
  std::map<uint64_t, class SimulatedTransport*> endpoints_;
  uint64_t next_endpoint_ = 1;
};

}  // namespace winnow::simulation
