#include "transport/nccl/nccl_path.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "transport/block_pool.h"
#include "transport/buddy_arena.h"
#include "transport/channel_address.h"
#include "transport/peer/watched_peer.h"

namespace winnow {
namespace {

// Of both sides, so that what one sends the other can receive.
constexpr size_t kSmallestPart = 4096;
// Below what NcclPair holds under way, so that posting never waits.
constexpr size_t kMaxUnderWay = 48;

// Staging of one direction: the same offsets in pinned memory and in the GPU's. Kept by payloads that outlive the path.
class Staging final : public PayloadMemory {
 public:
  static absl::StatusOr<std::shared_ptr<Staging>> Create(std::shared_ptr<device::Device> device, size_t bytes) {
    auto staging = std::make_shared<Staging>(std::move(device), bytes);
    WINNOW_ASSIGN_OR_RETURN(staging->host_, staging->device_->AllocatePinned(bytes));
    WINNOW_ASSIGN_OR_RETURN(staging->gpu_, staging->device_->Allocate(bytes));
    return staging;
  }
  Staging(std::shared_ptr<device::Device> device, size_t bytes)
      : device_(std::move(device)), arena_(bytes, kSmallestPart) {}

  std::optional<size_t> Take(size_t bytes) { return arena_.Take(bytes); }
  void GiveBack(size_t offset) { WINNOW_CHECK(arena_.GiveBack(offset)); }
  void Free(std::byte* payload) override { GiveBack(OffsetOf(payload)); }

  std::byte* host(size_t offset) const { return static_cast<std::byte*>(host_->data()) + offset; }
  std::byte* gpu(size_t offset) const { return static_cast<std::byte*>(gpu_->data()) + offset; }
  size_t OffsetOf(const std::byte* payload) const { return static_cast<size_t>(payload - host(0)); }

 private:
  const std::shared_ptr<device::Device> device_;
  BuddyArena arena_;
  std::unique_ptr<device::DeviceMemory> host_, gpu_;
};

// One direction: its communicator, and its streams, so that the copy of a payload runs beside the operation of another.
struct Direction {
  std::unique_ptr<device::NcclPair> pair;
  device::Stream stream = nullptr, copy_stream = nullptr;
  std::shared_ptr<Staging> staging;
};

// Communicators whose paths have ended and which NCCL still lets go of: whoever closes a channel does not wait for
// that. One thread.
class EndingPairs {
 public:
  // `device` outlives the pair.
  void Add(std::unique_ptr<device::NcclPair> pair, std::shared_ptr<device::Device> device) {
    std::erase_if(ending_, [](const std::future<void>& end) {
      return end.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
    if (pair == nullptr) return;
    ending_.push_back(std::async(std::launch::async, [pair = std::move(pair), device = std::move(device)]() mutable {
      pair.reset();
      device.reset();
    }));
  }

 private:
  std::vector<std::future<void>> ending_;  // waited for by their destructors
};

class NcclPath final : public PayloadPath {
 public:
  NcclPath(const device::DeviceTable& table, const NcclPathOptions& options, std::shared_ptr<EndingPairs> ending,
           std::shared_ptr<device::Device> device, std::string id)
      : table_(table), options_(options), ending_(std::move(ending)), device_(std::move(device)), id_(std::move(id)) {
    AppendText(local_address_, id_);
    AppendText(local_address_, device_->info().pci_bus_id);
    AppendText(local_address_, WatchedPeer::DescribeSelf());
  }
  ~NcclPath() override {
    peer_.Stop();
    Abort(absl::CancelledError("the channel was closed"));
    if (opener_.joinable()) opener_.join();
    // Aborted operations end soon, and copies by themselves; the memory stays until then.
    for (device::Stream stream : {out_.copy_stream, out_.stream, in_.stream, in_.copy_stream}) {
      if (stream != nullptr) device_->Synchronize(stream).IgnoreError();
    }
    for (Direction* direction : {&out_, &in_}) ending_->Add(std::move(direction->pair), device_);
  }

  absl::Status Open(size_t window_bytes) {
    const size_t bytes = std::bit_ceil(std::max(2 * window_bytes, wire::kMaxPayloadBytes));
    for (Direction* direction : {&out_, &in_}) {
      WINNOW_ASSIGN_OR_RETURN(direction->staging, Staging::Create(device_, bytes));
      direction->stream = device_->NewStream();
      direction->copy_stream = device_->NewStream();
    }
    return absl::OkStatus();
  }

  const std::string& LocalAddress() const override { return local_address_; }

  absl::Status Connect(std::string_view peer_address) override {
    const std::optional<std::string_view> id = TakeText(peer_address), gpu = TakeText(peer_address),
                                          process = TakeText(peer_address);
    if (!id.has_value() || !gpu.has_value() || !process.has_value()) {
      return absl::InvalidArgumentError("not an address of nccl");
    }
    if (process->substr(0, kBootIdBytes) == std::string_view(WatchedPeer::DescribeSelf()).substr(0, kBootIdBytes) &&
        *gpu == device_->info().pci_bus_id) {
      return absl::FailedPreconditionError(absl::StrCat("both sides have the same GPU (", AbslSv(*gpu), ")"));
    }
    WINNOW_RETURN_IF_ERROR(peer_.Watch(*process, [this](const absl::Status& why) { Abort(why); }));
    opener_ = std::thread([this, peer_id = std::string(*id)] { OpenPairs(peer_id); });
    return absl::OkStatus();
  }

  absl::StatusOr<bool> IsUp() const override {
    if (standing_.load(std::memory_order_acquire)) return true;
    const std::lock_guard lock(mutex_);
    if (!failed_.ok()) return failed_;
    return false;
  }

  std::byte* Allocate(size_t bytes) override {
    if (bytes < options_.smallest_bytes || sending_.size() >= kMaxUnderWay) return nullptr;
    std::optional<size_t> offset = out_.staging->Take(bytes);
    if (!offset.has_value() && TakeSent().ok()) offset = out_.staging->Take(bytes);
    return offset.has_value() ? out_.staging->host(*offset) : nullptr;
  }
  std::shared_ptr<PayloadMemory> memory() const override { return out_.staging; }

  absl::StatusOr<PayloadRef> Send(std::byte* payload, size_t bytes) override {
    const size_t offset = out_.staging->OffsetOf(payload);
    device_->CopyAsync(out_.staging->gpu(offset), payload, bytes, out_.copy_stream);
    std::unique_ptr<device::Event> copied = Record(out_.copy_stream);
    copied->Hold(out_.stream);
    WINNOW_RETURN_IF_ERROR(out_.pair->Send(out_.stream, out_.staging->gpu(offset), bytes));
    sending_.push_back({offset, std::move(copied), Record(out_.stream)});
    return PayloadRef{.offset = 0, .bytes = bytes};
  }

  absl::Status Expect(Block& block) override {
    if (block.reference.bytes > wire::kMaxPayloadBytes || block.reference.bytes == 0) {
      return absl::DataLossError("the peer announces a payload that cannot be");
    }
    receiving_.push_back({.bytes = block.reference.bytes});
    return Receive();
  }

  absl::StatusOr<bool> HasArrived(Block& block) override {
    WINNOW_RETURN_IF_ERROR(Receive());
    Receiving& first = receiving_.front();
    if (first.arrived == nullptr) return false;
    WINNOW_ASSIGN_OR_RETURN(const bool arrived, first.arrived->HasPassed());
    // What an aborted communicator leaves is not what was sent.
    WINNOW_RETURN_IF_ERROR(Failure());
    if (!arrived) return false;
    block.external = in_.staging->host(first.offset);
    block.memory = in_.staging;
    block.payload_bytes = static_cast<uint32_t>(first.bytes);
    events_.push_back(std::move(first.received));
    events_.push_back(std::move(first.arrived));
    receiving_.pop_front();
    --num_posted_;
    return true;
  }

  absl::Status Progress() override {
    WINNOW_RETURN_IF_ERROR(Failure());
    return TakeSent();
  }

 private:
  static constexpr size_t kBootIdBytes = 40;
  struct Sending {
    size_t offset;
    std::unique_ptr<device::Event> copied, sent;
  };
  struct Receiving {
    size_t bytes = 0;
    size_t offset = 0;
    std::unique_ptr<device::Event> received = nullptr, arrived = nullptr;  // null: not posted yet
  };

  std::unique_ptr<device::Event> Record(device::Stream stream) {
    std::unique_ptr<device::Event> event;
    if (events_.empty()) {
      event = device_->NewEvent();
    } else {
      event = std::move(events_.back());
      events_.pop_back();
    }
    event->Record(stream);
    return event;
  }

  absl::Status TakeSent() {
    while (!sending_.empty()) {
      WINNOW_ASSIGN_OR_RETURN(const bool sent, sending_.front().sent->HasPassed());
      if (!sent) break;
      out_.staging->GiveBack(sending_.front().offset);
      events_.push_back(std::move(sending_.front().copied));
      events_.push_back(std::move(sending_.front().sent));
      sending_.pop_front();
    }
    return absl::OkStatus();
  }

  // Posts what is expected, in order, as far as there is room.
  absl::Status Receive() {
    if (!standing_.load(std::memory_order_acquire)) return Failure();
    while (num_posted_ < receiving_.size() && num_posted_ < kMaxUnderWay) {
      Receiving& next = receiving_[num_posted_];
      const std::optional<size_t> offset = in_.staging->Take(next.bytes);
      if (!offset.has_value()) return absl::OkStatus();
      next.offset = *offset;
      WINNOW_RETURN_IF_ERROR(in_.pair->Receive(in_.stream, in_.staging->gpu(*offset), next.bytes));
      next.received = Record(in_.stream);
      next.received->Hold(in_.copy_stream);
      device_->CopyAsync(in_.staging->host(*offset), in_.staging->gpu(*offset), next.bytes, in_.copy_stream);
      next.arrived = Record(in_.copy_stream);
      ++num_posted_;
    }
    return absl::OkStatus();
  }

  // On the opener's thread: both communicators, in an order that both sides know, then one operation of each size, as
  // the first one of a size connects and waits for the peer's.
  void OpenPairs(const std::string& peer_id) {
    std::array<Direction*, 2> order = {&out_, &in_};
    if (peer_id < id_) std::swap(order[0], order[1]);
    for (Direction* direction : order) {
      const bool sends = direction == &out_;
      device::NcclPairOptions options;
      options.connect_timeout_ms = options_.connect_timeout_ms;
      options.operation_timeout_ms = options_.operation_timeout_ms;
      options.is_cancelled = [this] { return given_up_.load(std::memory_order_acquire); };
      // A direction's communicator is that of its sender's id, and the sender is rank 0.
      absl::StatusOr<std::unique_ptr<device::NcclPair>> pair =
          table_.open_nccl_pair(*device_, sends ? id_ : peer_id, sends ? 0 : 1, options);
      if (!pair.ok()) return Abort(pair.status());
      const std::lock_guard lock(mutex_);
      direction->pair = *std::move(pair);
      if (!failed_.ok()) return direction->pair->Abort(failed_);
    }
    const std::unique_ptr<device::Event> done = device_->NewEvent();
    for (Direction* direction : order) {
      for (size_t bytes = kSmallestPart; bytes <= wire::kMaxPayloadBytes; bytes *= 2) {
        const absl::Status posted = direction == &out_
                                        ? direction->pair->Send(direction->stream, out_.staging->gpu(0), bytes)
                                        : direction->pair->Receive(direction->stream, in_.staging->gpu(0), bytes);
        if (!posted.ok()) return Abort(posted);
      }
      done->Record(direction->stream);
      while (!given_up_.load(std::memory_order_acquire)) {
        const absl::StatusOr<bool> passed = done->HasPassed();
        if (!passed.ok()) return Abort(passed.status());
        if (*passed) break;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      if (const absl::Status status = direction->pair->status(); !status.ok()) return Abort(status);
    }
    if (!given_up_.load(std::memory_order_acquire)) standing_.store(true, std::memory_order_release);
  }

  // Any thread.
  void Abort(const absl::Status& why) {
    given_up_.store(true, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    if (failed_.ok()) failed_ = why;
    for (const Direction* direction : {&out_, &in_}) {
      if (direction->pair != nullptr) direction->pair->Abort(why);
    }
  }
  // Why nothing goes this way any more. A communicator that never stood is no failure: payloads go with their headers.
  absl::Status Failure() const {
    WINNOW_RETURN_IF_ERROR(peer_.status());
    if (!standing_.load(std::memory_order_acquire)) return absl::OkStatus();
    {
      const std::lock_guard lock(mutex_);
      if (!failed_.ok()) return failed_;
    }
    WINNOW_RETURN_IF_ERROR(out_.pair->status());
    return in_.pair->status();
  }

  const device::DeviceTable& table_;
  const NcclPathOptions options_;
  const std::shared_ptr<EndingPairs> ending_;
  const std::shared_ptr<device::Device> device_;  // of the opener until standing_, then of the channel
  const std::string id_;
  std::string local_address_;
  std::vector<std::unique_ptr<device::Event>> events_;  // to be used again
  std::deque<Sending> sending_;
  std::deque<Receiving> receiving_;
  size_t num_posted_ = 0;  // of receiving_, at its front

  mutable std::mutex mutex_;
  absl::Status failed_;  // guarded by mutex_
  Direction out_, in_;   // pairs: written by the opener under mutex_, constant once standing_
  std::atomic<bool> standing_{false};
  std::atomic<bool> given_up_{false};
  std::thread opener_;
  WatchedPeer peer_;  // last: its thread uses the rest
};

}  // namespace

PayloadPathKind NcclPaths(const device::DeviceTable& table, const NcclPathOptions& options) {
  return {.name = "nccl",
          .make = [&table, options, ending = std::make_shared<EndingPairs>()](
                      size_t window_bytes) -> absl::StatusOr<std::unique_ptr<PayloadPath>> {
            if (table.new_nccl_id == nullptr) return absl::UnavailableError("this backend has no NCCL");
            WINNOW_ASSIGN_OR_RETURN(std::string id, table.new_nccl_id());
            WINNOW_ASSIGN_OR_RETURN(std::shared_ptr<device::Device> device, table.open_device(options.ordinal));
            auto path = std::make_unique<NcclPath>(table, options, ending, std::move(device), std::move(id));
            WINNOW_RETURN_IF_ERROR(path->Open(window_bytes));
            return path;
          }};
}

}  // namespace winnow
