#pragma once
#include <deque>
#include <memory>
#include <string>

#include "transport/framed_channel.h"
#include "transport/framed_transport.h"
#include "transport/path_choice.h"
#include "transport/ucx/ucx_worker.h"

namespace winnow {

// What the channels of one transport share.
struct UcxSettings {
  std::shared_ptr<UcxContexts> contexts;
  uint64_t host = 0;  // of this boot of this machine
  bool may_use_shared_memory = true;
};

// A channel over a UCX worker of its own, with a payload path beside it where both sides have one.
class UcxChannel final : public FramedChannel {
 public:
  // `settings`: of the transport.
  UcxChannel(FramedTransport& transport, uint32_t id, const UcxSettings& settings)
      : FramedChannel(transport, id),
        settings_(settings),
        paths_(transport.options().payload_paths, transport.options().window_bytes) {}
  ~UcxChannel() override { Disconnect(); }
  absl::Status Open();  // once, before anything else

  std::string LocalAddress() const override;
  absl::Status Connect(std::string_view peer_address) override;
  std::string_view payload_path() const override;
  bool sending() const override {
    return worker_ != nullptr && (worker_->sending() || (paths_.path() != nullptr && paths_.path()->sending()));
  }

  // Moves what can be moved.
  void Pump();
  // Credit goes back in lots of a quarter of the window, and when nothing else is going on: the rest must not stay here
  // for ever.
  void ReturnCredit(bool idle);
  // True while payloads are on their way here, of which no event tells.
  bool arriving() const { return !arriving_.empty(); }
  // Null after Close or failure.
  UcxWorker* worker() const { return worker_.get(); }

 private:
  BlockPtr NewBlock(size_t bytes) override;
  absl::Status Send(BlockPtr block) override;
  void Disconnect() override;

  // Inside the worker's progress.
  void Receive(BlockPtr block);
  // A message that has not the size of a frame: of the peer, or, where frames need a key, of anybody.
  void NoteNoFrame(absl::Status why);
  // Hands on what is here whole, in order.
  void TakeArrived();
  // Tells which path the channel takes as soon as that is known.
  void SettlePath();
  void NoteError(absl::Status status) {
    if (link_error_.ok()) link_error_ = std::move(status);
  }

  const UcxSettings& settings_;
  std::string worker_address_;
  std::unique_ptr<UcxWorker> worker_;
  mutable PathChoice paths_;   // made when the address is asked for
  bool path_is_open_ = false;  // it is not known yet which path there is
  std::deque<BlockPtr> arriving_;
  absl::Status link_error_;  // what happened inside the worker's progress, where the worker cannot be destroyed
  const std::shared_ptr<Consumption> consumption_ = std::make_shared<Consumption>();  // of what the peer sent
  uint64_t returned_bytes_ = 0;
  uint64_t returned_frames_ = 0;
  int polls_with_credit_ = 0;
};

}  // namespace winnow
