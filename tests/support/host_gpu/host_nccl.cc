#include "tests/support/host_gpu/host_nccl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace winnow::test {
namespace {

class HostNcclPair final : public device::NcclPair {
 public:
  HostNcclPair(std::string_view id, int rank)
      : names_{NameOf(id, 0), NameOf(id, 1)}, own_(Open(names_[rank])), peers_(Open(names_[1 - rank])) {}
  ~HostNcclPair() override {
    close(own_);
    close(peers_);
    for (const std::string& name : names_) unlink(name.c_str());  // the peer has them open, or made new ones
  }

  absl::Status Send(device::Stream, const void* from, size_t bytes) override {
    if (absl::Status failed = status(); !failed.ok()) return failed;
    const ssize_t moved = static_cast<ssize_t>(device::NcclBytes(bytes));
    WINNOW_CHECK(pwrite(own_, from, moved, sent_) == moved);
    sent_ += moved;
    return absl::OkStatus();
  }
  absl::Status Receive(device::Stream, void* to, size_t bytes) override {
    const off_t moved = static_cast<off_t>(device::NcclBytes(bytes));
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    struct stat file = {};
    while (fstat(peers_, &file) == 0 && file.st_size < received_ + moved) {
      if (absl::Status failed = status(); !failed.ok()) return failed;
      if (std::chrono::steady_clock::now() > give_up) return absl::DeadlineExceededError("NCCL: nothing came");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    WINNOW_CHECK(pread(peers_, to, moved, received_) == moved);
    fallocate(peers_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, received_, moved);
    received_ += moved;
    return absl::OkStatus();
  }

  void Abort(const absl::Status& why) override {
    const std::lock_guard lock(mutex_);
    if (failed_.ok()) failed_ = why;
  }
  absl::Status status() const override {
    const std::lock_guard lock(mutex_);
    return failed_;
  }

 private:
  static std::string NameOf(std::string_view id, int rank) {
    return absl::StrCat("/dev/shm/", absl::string_view(id.data(), id.size()), ".", rank);
  }
  static int Open(const std::string& name) {
    const int file = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    WINNOW_CHECK(file >= 0);
    return file;
  }

  const std::string names_[2];
  const int own_, peers_;
  off_t sent_ = 0, received_ = 0;
  mutable std::mutex mutex_;
  absl::Status failed_;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<std::string> NewHostNcclId() {
  std::random_device random;
  return absl::StrCat("winnow-test-", absl::Hex(uint64_t{random()} << 32 | random()));
}

absl::StatusOr<std::unique_ptr<device::NcclPair>> OpenHostNcclPair(device::Device&, std::string_view id, int rank,
                                                                   const device::NcclPairOptions&) {
  return std::make_unique<HostNcclPair>(id, rank);
}

}  // namespace winnow::test
