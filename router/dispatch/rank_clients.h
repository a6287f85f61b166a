#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "router/dispatch/rank_client.h"
#include "router/dispatch/routing_policy.h"
#include "router/membership/registry.h"

namespace winnow {

// The streams to all inference ranks, opened when first needed, and how many requests this router has on each rank.
// Thread-safe; owned by a shared_ptr, because streams end in their own time.
class RankClients : public std::enable_shared_from_this<RankClients> {
 public:
  using ChannelFactory = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;

  // `on_lost` is called when a stream has ended by itself.
  RankClients(v1::Identity self, ChannelFactory channels, RankClient::Options options,
              std::function<void(const v1::Identity&)> on_lost);

  std::shared_ptr<RankClient> Get(const v1::Identity& rank);
  // Closes the streams to ranks that are not in the table any more.
  void Retain(const MembershipSnapshot& snapshot);
  // Ends all streams and waits until gRPC is done with them. Not from gRPC's threads.
  void CloseAll();

  // Counts a request on all ranks of its route, and its prompt, where that is still to be computed, on the inference
  // rank.
  void Assign(const Route& route, uint64_t prompt_tokens);
  void Unassign(const Route& route, uint64_t prompt_tokens);
  // The prompt of a request that stays has been computed.
  void PromptDone(const Route& route, uint64_t prompt_tokens);
  AssignedCounts Assigned() const;

 private:
  // Streams end on gRPC's threads, where the last channel of a process must not be destroyed: the library would wait
  // there for the thread itself. So channels are left here, for others to destroy.
  struct OpenStreams {
    std::mutex mutex;
    std::condition_variable ended;
    size_t count = 0;
    std::vector<std::shared_ptr<grpc::Channel>> unused_channels;
  };
  std::shared_ptr<void> CountStream(std::shared_ptr<grpc::Channel> channel);
  void Forget(const RankKey& key, const v1::Identity& rank);

  const v1::Identity self_;
  const ChannelFactory channels_;
  const RankClient::Options options_;
  const std::function<void(const v1::Identity&)> on_lost_;
  const std::shared_ptr<OpenStreams> open_streams_ = std::make_shared<OpenStreams>();

  mutable std::mutex mutex_;
  bool closed_ = false;
  std::map<RankKey, std::shared_ptr<RankClient>> clients_;
  AssignedCounts assigned_;
};

}  // namespace winnow
