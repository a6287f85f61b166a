#include "transport/shm/shared_memory_path.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include "common/base/check.h"
#include "transport/block_pool.h"
#include "transport/buddy_arena.h"

namespace winnow {
namespace {

// Below this a payload is as quickly copied as shared.
constexpr size_t kSmallestPayload = 4096;

// The owner's process, and its memory in it.
struct Address {
  char boot_id[40];  // of the running kernel: equal on one host, whatever the container
  uint64_t pid_namespace;
  uint64_t nonce;  // also in the memory: a process number may be another process's by now
  uint64_t bytes;
  int32_t pid;
  int32_t file;
};
static_assert(sizeof(Address) == 72);

// At the start of the memory, a page; then the ring, then the payloads.
struct Head {
  uint64_t nonce;
  // Written by the peer:
  std::atomic<uint32_t> mapped;     // 1: it reads from here
  std::atomic<uint32_t> num_freed;  // entries ever written to the ring
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(Head) <= kSmallestPayload);

// Payload offsets in units of kSmallestPayload. As many entries as payloads can be out, so that it never overflows.
size_t RingEntries(size_t payload_bytes) {
  return payload_bytes / kSmallestPayload;
}
size_t PayloadsAt(size_t payload_bytes) {
  const size_t ring_bytes = RingEntries(payload_bytes) * sizeof(uint32_t);
  return kSmallestPayload + (ring_bytes + kSmallestPayload - 1) / kSmallestPayload * kSmallestPayload;
}

using Pin = std::function<absl::StatusOr<std::shared_ptr<void>>(void*, size_t)>;

// One side's memory, mapped here.
class Mapping {
 public:
  static absl::StatusOr<std::unique_ptr<Mapping>> Map(int file, size_t payload_bytes, const Pin& pin) {
    auto mapping = std::unique_ptr<Mapping>(new Mapping(payload_bytes));
    void* memory = mmap(nullptr, mapping->total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot map ", mapping->total_bytes(), " bytes of shared memory: ", std::strerror(errno)));
    }
    mapping->memory_ = static_cast<std::byte*>(memory);
    if (pin) {
      WINNOW_ASSIGN_OR_RETURN(mapping->pinned_, pin(memory, mapping->total_bytes()));
    }
    return mapping;
  }
  ~Mapping() {
    pinned_.reset();
    if (memory_ != nullptr) munmap(memory_, total_bytes());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool is_pinned() const { return pinned_ != nullptr; }
  size_t payload_bytes() const { return payload_bytes_; }
  size_t total_bytes() const { return PayloadsAt(payload_bytes_) + payload_bytes_; }
  Head& head() const { return *reinterpret_cast<Head*>(memory_); }
  std::atomic<uint32_t>& ring(uint32_t entry) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(memory_ + kSmallestPayload)[entry % RingEntries(payload_bytes_)];
  }
  std::byte* payload(size_t offset) const { return memory_ + PayloadsAt(payload_bytes_) + offset; }
  size_t OffsetOf(const std::byte* payload) const { return static_cast<size_t>(payload - this->payload(0)); }

 private:
  explicit Mapping(size_t payload_bytes) : payload_bytes_(payload_bytes) {}
  const size_t payload_bytes_;
  std::byte* memory_ = nullptr;
  std::shared_ptr<void> pinned_;
};

// What this side sends.
class Outbox final : public PayloadMemory {
 public:
  Outbox(std::unique_ptr<Mapping> mapping, int file)
      : mapping_(std::move(mapping)), file_(file), arena_(mapping_->payload_bytes(), kSmallestPayload) {}
  ~Outbox() override { close(file_); }

  int file() const { return file_; }
  const Mapping& mapping() const { return *mapping_; }
  std::byte* Allocate(size_t bytes) {
    std::optional<size_t> offset = arena_.Take(bytes);
    return offset.has_value() ? mapping_->payload(*offset) : nullptr;
  }
  // A payload that was never sent.
  void Free(std::byte* payload) override { WINNOW_CHECK(arena_.GiveBack(mapping_->OffsetOf(payload))); }
  // Takes back what the peer is done with.
  absl::Status TakeFreed() {
    const uint32_t freed = mapping_->head().num_freed.load(std::memory_order_acquire);
    if (freed - taken_ > RingEntries(mapping_->payload_bytes())) return Broken();
    for (; taken_ != freed; ++taken_) {
      const size_t unit = mapping_->ring(taken_).load(std::memory_order_relaxed);
      if (!arena_.GiveBack(unit * kSmallestPayload)) return Broken();
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Broken() { return absl::DataLossError("the peer gave back memory that it did not have"); }

  const std::unique_ptr<Mapping> mapping_;
  const int file_;
  BuddyArena arena_;
  uint32_t taken_ = 0;  // entries of the ring
};

// What the peer sends: its outbox.
class Inbox final : public PayloadMemory {
 public:
  explicit Inbox(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
  const Mapping& mapping() const { return *mapping_; }
  void Free(std::byte* payload) override {
    mapping_->ring(freed_).store(static_cast<uint32_t>(mapping_->OffsetOf(payload) / kSmallestPayload),
                                 std::memory_order_relaxed);
    mapping_->head().num_freed.store(++freed_, std::memory_order_release);
  }
  bool is_pinned() const override { return mapping_->is_pinned(); }

 private:
  const std::unique_ptr<Mapping> mapping_;
  uint32_t freed_ = 0;
};

class SharedMemoryPath final : public PayloadPath {
 public:
  SharedMemoryPath(Pin pin, std::shared_ptr<Outbox> outbox, const Address& self)
      : pin_(std::move(pin)),
        self_(self),
        local_address_(reinterpret_cast<const char*>(&self), sizeof(self)),
        outbox_(std::move(outbox)) {}

  const std::string& LocalAddress() const override { return local_address_; }

  absl::Status Connect(std::string_view peer_address) override {
    Address peer;
    if (peer_address.size() != sizeof(peer)) return absl::InvalidArgumentError("not an address of shared memory");
    std::memcpy(&peer, peer_address.data(), sizeof(peer));
    if (std::memcmp(peer.boot_id, self_.boot_id, sizeof(peer.boot_id)) != 0) {
      return absl::FailedPreconditionError("the peer runs on another host");
    }
    if (peer.pid_namespace != self_.pid_namespace) {
      return absl::FailedPreconditionError("the peer's processes are hidden from this one (another PID namespace)");
    }
    constexpr size_t kMost = size_t{1} << 36;
    if (!std::has_single_bit(peer.bytes) || peer.bytes < kSmallestPayload || peer.bytes > kMost) {
      return absl::InvalidArgumentError("not an address of shared memory");
    }
    const int file = open(absl::StrCat("/proc/", peer.pid, "/fd/", peer.file).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("memory of process ", peer.pid, " cannot be opened: ", std::strerror(errno)));
    }
    absl::StatusOr<std::unique_ptr<Mapping>> mapping = MapPeer(file, peer);
    close(file);
    WINNOW_RETURN_IF_ERROR(mapping.status());
    (*mapping)->head().mapped.store(1, std::memory_order_release);
    inbox_ = std::make_shared<Inbox>(*std::move(mapping));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> IsUp() const override {
    return outbox_->mapping().head().mapped.load(std::memory_order_acquire) == 1;
  }

  std::byte* Allocate(size_t bytes) override {
    if (bytes < kSmallestPayload) return nullptr;
    std::byte* payload = outbox_->Allocate(bytes);
    if (payload != nullptr || !outbox_->TakeFreed().ok()) return payload;
    return outbox_->Allocate(bytes);
  }
  std::shared_ptr<PayloadMemory> memory() const override { return outbox_; }
  absl::StatusOr<PayloadRef> Send(std::byte* payload, size_t bytes) override {
    return PayloadRef{.offset = outbox_->mapping().OffsetOf(payload), .bytes = bytes};
  }

  absl::Status Expect(Block& block) override {
    const auto [offset, bytes] = block.reference;
    if (inbox_ == nullptr || offset % kSmallestPayload != 0 || offset >= inbox_->mapping().payload_bytes() ||
        bytes > std::min<uint64_t>(inbox_->mapping().payload_bytes() - offset, wire::kMaxPayloadBytes)) {
      return absl::DataLossError("the peer names a payload outside of its memory");
    }
    block.external = inbox_->mapping().payload(offset);
    block.memory = inbox_;
    block.payload_bytes = static_cast<uint32_t>(bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> HasArrived(Block&) override { return true; }
  absl::Status Progress() override { return outbox_->TakeFreed(); }

 private:
  absl::StatusOr<std::unique_ptr<Mapping>> MapPeer(int file, const Address& peer) const {
    // A file that could shrink would make reading it a deadly signal.
    const int seals = fcntl(file, F_GET_SEALS);
    struct stat status = {};
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(file, &status) != 0 ||
        static_cast<uint64_t>(status.st_size) < PayloadsAt(peer.bytes) + peer.bytes) {
      return absl::FailedPreconditionError(absl::StrCat("process ", peer.pid, " shares no such memory"));
    }
    WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Mapping> mapping, Mapping::Map(file, peer.bytes, pin_));
    if (mapping->head().nonce != peer.nonce) {
      return absl::FailedPreconditionError(absl::StrCat("process ", peer.pid, " is not the peer any more"));
    }
    return mapping;
  }

  const Pin pin_;
  const Address self_;
  const std::string local_address_;
  const std::shared_ptr<Outbox> outbox_;
  std::shared_ptr<Inbox> inbox_;  // from Connect on
};

}  // namespace

absl::StatusOr<std::unique_ptr<PayloadPath>> NewSharedMemoryPath(const SharedMemoryPathOptions& options) {
  Address self = {};
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  std::strncpy(self.boot_id, boot_id.c_str(), sizeof(self.boot_id) - 1);
  struct stat space = {};
  if (stat("/proc/self/ns/pid", &space) == 0) self.pid_namespace = space.st_ino;
  std::random_device random;
  self.nonce = uint64_t{random()} << 32 | random();
  self.pid = getpid();
  // Twice the window: payloads are rounded up to powers of two. What finds no room goes with its header.
  self.bytes = std::bit_ceil(std::max(2 * options.window_bytes, wire::kMaxPayloadBytes));
  self.file = memfd_create("winnow payloads", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (self.file < 0) return absl::UnavailableError(absl::StrCat("memfd_create: ", std::strerror(errno)));
  absl::StatusOr<std::unique_ptr<Mapping>> mapping = absl::ResourceExhaustedError("no shared memory");
  if (ftruncate(self.file, static_cast<off_t>(PayloadsAt(self.bytes) + self.bytes)) == 0 &&
      fcntl(self.file, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    mapping = Mapping::Map(self.file, self.bytes, options.pin);
  }
  if (!mapping.ok()) {
    close(self.file);
    return mapping.status();
  }
  (*mapping)->head().nonce = self.nonce;
  auto outbox = std::make_shared<Outbox>(*std::move(mapping), self.file);
  return std::make_unique<SharedMemoryPath>(options.pin, std::move(outbox), self);
}

}  // namespace winnow
