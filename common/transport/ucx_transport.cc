#include "common/transport/ucx_transport.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <fstream>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/transport/channel_address.h"
#include "common/transport/crc32c.h"
#include "common/transport/framed_channel.h"
#include "common/transport/framed_transport.h"
#include "common/transport/path_choice.h"
#include "common/transport/ucx_worker.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

// Of this boot of this machine: shared memory may reach a peer with the same number, never one with another.
uint64_t HostNumber() {
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  const auto hash = [](std::string_view text) { return Crc32c(std::as_bytes(std::span(text))); };
  return uint64_t{hash(boot_id)} << 32 | hash(name);
}

// Whether UCX could use shared memory under this UCX_TLS. It has no error handling there, and asking for it would
// silently choose TCP.
bool MayUseSharedMemory(std::string_view tls) {
  if (tls.empty() || tls.front() == '^') return true;
  while (!tls.empty()) {
    const size_t comma = tls.find(',');
    const std::string_view name = tls.substr(0, comma);
    for (const std::string_view shared : {"all", "shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem"}) {
      if (name == shared) return true;
    }
    tls = comma == std::string_view::npos ? std::string_view() : tls.substr(comma + 1);
  }
  return false;
}

class EventFd {
 public:
  EventFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~EventFd() {
    if (fd_ >= 0) close(fd_);
  }
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;
  int get() const { return fd_; }
  void Signal() const {
    const uint64_t one = 1;
    while (write(fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  void Drain() const {
    uint64_t count = 0;
    while (read(fd_, &count, sizeof(count)) < 0 && errno == EINTR) {
    }
  }

 private:
  const int fd_;
};

struct UcxSettings {
  std::shared_ptr<UcxContext> context;
  uint64_t host = 0;
  bool may_use_shared_memory = true;
};

class UcxChannel final : public FramedChannel {
 public:
  UcxChannel(FramedTransport& transport, uint32_t id, const UcxSettings& settings)
      : FramedChannel(transport, id),
        settings_(settings),
        paths_(transport.options().payload_paths, transport.options().window_bytes) {}
  ~UcxChannel() override { Disconnect(); }

  absl::Status Open() {
    WINNOW_ASSIGN_OR_RETURN(worker_,
                            UcxWorker::Create(
                                settings_.context, pool_, [this](BlockPtr block) { Receive(std::move(block)); },
                                [this](absl::Status status) { NoteError(std::move(status)); }));
    worker_address_ = worker_->address();
    return absl::OkStatus();
  }

  std::string LocalAddress() const override {
    ChannelAddress address{ChannelAddress::Kind::kUcx, id(), transport_.options().incarnation, settings_.host, {}};
    AppendText(address.endpoint, worker_address_);
    address.endpoint += paths_.Offers();
    return address.Encode();
  }

  absl::Status Connect(std::string_view peer_address) override {
    WINNOW_RETURN_IF_ERROR(CheckConnectable());
    WINNOW_ASSIGN_OR_RETURN(const ChannelAddress address,
                            ChannelAddress::Decode(peer_address, ChannelAddress::Kind::kUcx));
    std::string_view endpoint = address.endpoint;
    const std::optional<std::string_view> worker = TakeText(endpoint);
    if (!worker.has_value()) return absl::InvalidArgumentError("peer address names no worker");
    const bool watch_peer = address.host != settings_.host || !settings_.may_use_shared_memory;
    WINNOW_RETURN_IF_ERROR(worker_->Connect(*worker, watch_peer));
    paths_.Connect(endpoint);
    SetPeer(address.channel, address.incarnation);
    path_is_open_ = !transport_.options().payload_paths.empty();
    SettlePath();
    return absl::OkStatus();
  }

  std::string_view payload_path() const override {
    return paths_.path() != nullptr && paths_.path()->IsUp().value_or(false) ? paths_.name() : std::string_view();
  }

  // Moves what can be moved; true when something moved.
  bool Pump() {
    if (worker_ == nullptr) return false;
    // Bounded, so that a peer that never stops sending does not keep the other channels waiting.
    constexpr int kMaxRounds = 64;
    int rounds = 0;
    while (rounds < kMaxRounds && worker_->Progress()) ++rounds;
    if (paths_.path() != nullptr) NoteError(paths_.path()->Progress());
    if (path_is_open_) SettlePath();
    Land();
    if (!link_error_.ok()) {
      if (absl::IsDataLoss(link_error_)) ++transport_.mutable_counters().bad_frames;
      Fail(link_error_);
    }
    return rounds > 0;
  }

  // Credit goes back in lots of a quarter of the window, and when nothing else is going on: the rest must not stay here
  // for ever.
  void ReturnCredit(bool idle) {
    if (worker_ == nullptr) return;
    const uint64_t bytes = consumption_->bytes.load(std::memory_order_relaxed);
    const uint64_t frames = consumption_->frames.load(std::memory_order_relaxed);
    if (frames == returned_frames_) return;
    const bool due = bytes - returned_bytes_ >= transport_.options().window_bytes / 4 ||
                     frames - returned_frames_ >= SendWindow::kMaxFrames / 4;
    constexpr int kIdlePolls = 256;
    if (!due && !idle && ++polls_with_credit_ < kIdlePolls) return;
    polls_with_credit_ = 0;
    returned_bytes_ = bytes;
    returned_frames_ = frames;
    SendCredit(*consumption_);
  }

  bool sending() const override {
    return worker_ != nullptr && (worker_->sending() || (paths_.path() != nullptr && paths_.path()->sending()));
  }
  // True while payloads are on their way here, of which no event tells.
  bool landing() const { return !landing_.empty(); }

  // Null after Close or failure.
  UcxWorker* worker() const { return worker_.get(); }

 private:
  BlockPtr NewBlock(size_t bytes) override {
    PayloadPath* const path = paths_.path();
    std::byte* const payload = path != nullptr && path->IsUp().value_or(false) ? path->Allocate(bytes) : nullptr;
    if (payload == nullptr) return pool_->Take(bytes);
    BlockPtr block = pool_->Take(0);
    block->elsewhere = payload;
    block->memory = path->memory();
    block->payload_bytes = static_cast<uint32_t>(bytes);
    return block;
  }

  absl::Status Send(BlockPtr block) override {
    if (block->memory != nullptr) {
      WINNOW_ASSIGN_OR_RETURN(block->reference, paths_.path()->Send(block->elsewhere, block->payload_bytes));
      block->memory.reset();
      block->by_reference = true;
    }
    return worker_->Send(std::move(block));
  }

  void Disconnect() override {
    worker_.reset();
    landing_.clear();
    paths_.Drop();
  }

  // Inside the worker's progress.
  void Receive(BlockPtr block) {
    block->consumption = consumption_;
    if (block->by_reference) {
      NoteError(paths_.path() != nullptr ? paths_.path()->Expect(*block)
                                         : absl::DataLossError("a payload is announced on a path that there is not"));
      if (!link_error_.ok()) return;
    }
    landing_.push_back(std::move(block));
  }

  // Hands on what is here whole, in order.
  void Land() {
    while (!landing_.empty()) {
      if (landing_.front()->by_reference) {
        const absl::StatusOr<bool> landed = paths_.path()->HasLanded(*landing_.front());
        if (!landed.ok()) return NoteError(landed.status());
        if (!*landed) return;
      }
      Arrived(std::move(landing_.front()));
      landing_.pop_front();
    }
  }

  // Tells which path the channel takes as soon as that is known.
  void SettlePath() {
    absl::Status why_none = paths_.why_none();
    if (paths_.path() != nullptr) {
      const absl::StatusOr<bool> up = paths_.path()->IsUp();
      if (up.ok() && !*up) return;
      why_none = Annotate(up.status(), paths_.name());
    }
    path_is_open_ = false;
    if (const auto& tell = transport_.options().on_payload_path; tell) {
      tell(why_none.ok() ? paths_.name() : std::string_view(), why_none);
    }
  }

  void NoteError(absl::Status status) {
    if (link_error_.ok()) link_error_ = std::move(status);
  }

  const UcxSettings& settings_;  // of the transport
  std::string worker_address_;
  std::unique_ptr<UcxWorker> worker_;
  mutable PathChoice paths_;   // made when the address is asked for
  bool path_is_open_ = false;  // it is not known yet which path there is
  std::deque<BlockPtr> landing_;
  absl::Status link_error_;  // what happened inside the worker's progress, where the worker cannot be destroyed
  const std::shared_ptr<Consumption> consumption_ = std::make_shared<Consumption>();  // of what the peer sent
  uint64_t returned_bytes_ = 0;
  uint64_t returned_frames_ = 0;
  int polls_with_credit_ = 0;
};

class UcxTransport final : public FramedTransport {
 public:
  UcxTransport(const TransportOptions& options, LinkFaults faults, UcxSettings settings)
      : FramedTransport(options, std::move(faults)), settings_(std::move(settings)) {}

  TransportCapabilities capabilities() const override { return {.name = "ucx", .crosses_processes = true}; }

  absl::StatusOr<std::unique_ptr<Channel>> NewChannel() override {
    auto channel = std::make_unique<UcxChannel>(*this, NewChannelId(), settings_);
    WINNOW_RETURN_IF_ERROR(channel->Open());
    return channel;
  }

  int Progress() override {
    ForEachChannel([](UcxChannel& channel) { channel.Pump(); });
    const int delivered = DeliverArrived();
    ForEachChannel([](UcxChannel& channel) { channel.ReturnCredit(/*idle=*/false); });
    return delivered;
  }

  int Wait(std::chrono::microseconds timeout, std::chrono::microseconds spin) override {
    const Clock::time_point start = Clock::now();
    for (;;) {
      const int delivered = Progress();
      if (woken_.exchange(false) || TakeRoom() || delivered > 0) return delivered;
      const auto elapsed = Clock::now() - start;
      if (elapsed >= timeout) return 0;
      if (elapsed < spin) {
        sched_yield();
      } else {
        Sleep(std::chrono::duration_cast<std::chrono::nanoseconds>(timeout - elapsed));
      }
    }
  }

  void Wake() override {
    woken_.store(true);
    wake_.Signal();
  }

 private:
  template <typename Function>
  void ForEachChannel(Function function) {
    for (FramedChannel* channel : channels()) {
      if (channel != nullptr) function(*static_cast<UcxChannel*>(channel));
    }
  }

  // Returns when there may be something to do, at the latest after `longest`.
  void Sleep(std::chrono::nanoseconds longest) {
    // Backstops: for an event that UCX did not signal, for room in a full queue, which it never signals, and for a
    // queue that claims to have something although progress finds nothing, as one does whose sender was killed while it
    // wrote.
    constexpr std::chrono::nanoseconds kMissedEvent = std::chrono::milliseconds(100);
    constexpr std::chrono::nanoseconds kFullQueue = std::chrono::microseconds(100);
    constexpr std::chrono::nanoseconds kLanding = std::chrono::microseconds(10);
    constexpr std::chrono::nanoseconds kBusyQueue = std::chrono::milliseconds(1);
    constexpr int kMaxBusyRounds = 64;

    longest = std::min(longest, kMissedEvent);
    poll_fds_.assign(1, pollfd{wake_.get(), POLLIN, 0});
    bool busy = false;
    ForEachChannel([&](UcxChannel& channel) {
      channel.ReturnCredit(/*idle=*/true);
      if (channel.worker() == nullptr) return;
      const absl::StatusOr<bool> armed = channel.worker()->Arm();
      busy |= !armed.ok() || !*armed;
      if (channel.sending()) longest = std::min(longest, kFullQueue);
      if (channel.landing()) longest = std::min(longest, kLanding);
      poll_fds_.push_back(pollfd{channel.worker()->event_fd(), POLLIN, 0});
    });
    if (busy) {
      if (++busy_rounds_ < kMaxBusyRounds) return;
      longest = std::min(longest, kBusyQueue);
    } else {
      busy_rounds_ = 0;
    }
    const timespec limit{.tv_sec = longest.count() / 1'000'000'000, .tv_nsec = longest.count() % 1'000'000'000};
    if (ppoll(poll_fds_.data(), poll_fds_.size(), &limit, nullptr) > 0 && poll_fds_[0].revents != 0) wake_.Drain();
  }

  const UcxSettings settings_;
  std::vector<pollfd> poll_fds_;
  int busy_rounds_ = 0;
  // Shared with threads that call Wake:
  std::atomic<bool> woken_{false};
  EventFd wake_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> NewUcxTransport(const TransportOptions& options) {
  return NewUcxTransport(options, {});
}

absl::StatusOr<std::unique_ptr<Transport>> NewUcxTransport(const TransportOptions& options, LinkFaults faults) {
  UcxSettings settings;
  WINNOW_ASSIGN_OR_RETURN(settings.context, UcxContext::Create(options.ucx_tls));
  settings.host = HostNumber();
  const char* environment = std::getenv("UCX_TLS");
  settings.may_use_shared_memory =
      MayUseSharedMemory(options.ucx_tls.empty() && environment != nullptr ? environment : options.ucx_tls);
  return std::make_unique<UcxTransport>(options, std::move(faults), std::move(settings));
}

}  // namespace winnow
