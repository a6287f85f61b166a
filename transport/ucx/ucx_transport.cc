#include "transport/ucx/ucx_transport.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <utility>

#include "transport/framed_transport.h"
#include "transport/ucx/ucx_channel.h"
#include "transport/wire/crc32c.h"

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
    constexpr std::chrono::nanoseconds kArriving = std::chrono::microseconds(10);
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
      if (channel.arriving()) longest = std::min(longest, kArriving);
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
  WINNOW_ASSIGN_OR_RETURN(settings.contexts, UcxContexts::Create(options.ucx_tls));
  settings.host = HostNumber();
  const char* environment = std::getenv("UCX_TLS");
  settings.may_use_shared_memory =
      MayUseSharedMemory(options.ucx_tls.empty() && environment != nullptr ? environment : options.ucx_tls);
  return std::make_unique<UcxTransport>(options, std::move(faults), std::move(settings));
}

}  // namespace winnow
