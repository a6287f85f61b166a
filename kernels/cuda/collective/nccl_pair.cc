#include "kernels/device/nccl_pair.h"

#include <cuda_runtime.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "common/base/status.h"
#include "kernels/cuda/collective/nccl_library.h"
#include "kernels/cuda/collective/open_nccl_pair.h"

namespace winnow::device {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{20};
constexpr size_t kMaxUnderWay = 64;  // operations; one more waits for the oldest

class Pair final : public NcclPair {
 public:
  Pair(const NcclLibrary& nccl, int ordinal, int rank, const NcclPairOptions& options)
      : nccl_(nccl), ordinal_(ordinal), rank_(rank), options_(options) {
    cudaSetDevice(ordinal_);
    for (Operation& operation : operations_) {
      cudaEventCreateWithFlags(&operation.done, cudaEventDisableTiming);
    }
  }
  ~Pair() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (watchdog_.joinable()) watchdog_.join();
    Abort(absl::CancelledError("the pair was closed"));
    if (aborter_.joinable()) aborter_.join();
    cudaSetDevice(ordinal_);
    for (const Operation& operation : operations_) cudaEventDestroy(operation.done);
  }

  absl::Status Connect(const ncclUniqueId& id) {
    cudaSetDevice(ordinal_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t result = nccl_.comm_init(&communicator_, 2, id, rank_, &config);
    const Clock::time_point deadline = Clock::now() + milliseconds(options_.connect_timeout_ms);
    while (result == ncclInProgress && Clock::now() < deadline) {
      if (options_.is_cancelled && options_.is_cancelled()) {
        absl::Status why = absl::CancelledError("NCCL: given up while connecting");
        Abort(why);
        return why;
      }
      std::this_thread::sleep_for(milliseconds(1));
      if (nccl_.comm_error(communicator_, &result) != ncclSuccess) result = ncclInternalError;
    }
    if (result != ncclSuccess) {
      absl::Status why = result == ncclInProgress
                             ? absl::DeadlineExceededError(absl::StrCat("NCCL: the peer did not connect within ",
                                                                        options_.connect_timeout_ms, " ms"))
                             : ToStatus(result);
      Abort(why);
      return why;
    }
    watchdog_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  absl::Status Send(Stream stream, const void* from, size_t bytes) override {
    return Post(stream, [&] { return nccl_.send(from, NcclBytes(bytes), ncclInt8, 1 - rank_, communicator_, stream); });
  }
  absl::Status Receive(Stream stream, void* to, size_t bytes) override {
    return Post(stream,
                [&] { return nccl_.receive(to, NcclBytes(bytes), ncclInt8, 1 - rank_, communicator_, stream); });
  }

  void Abort(const absl::Status& why) override {
    const std::lock_guard lock(mutex_);
    AbortLocked(why);
  }
  absl::Status status() const override {
    const std::lock_guard lock(mutex_);
    return failed_;
  }

 private:
  struct Operation {
    cudaEvent_t done = nullptr;
    Clock::time_point posted;
  };

  absl::Status ToStatus(ncclResult_t result) const {
    const std::string text = absl::StrCat("NCCL: ", nccl_.error_string(result));
    return result == ncclRemoteError || result == ncclSystemError ? absl::UnavailableError(text)
                                                                  : absl::InternalError(text);
  }

  template <typename Enqueue>
  absl::Status Post(Stream stream, const Enqueue& enqueue) {
    cudaSetDevice(ordinal_);
    std::unique_lock lock(mutex_);
    while (failed_.ok() && (CollectDone(), num_under_way_ == kMaxUnderWay)) changed_.wait_for(lock, kLookEvery);
    if (!failed_.ok()) return failed_;
    ncclResult_t result = enqueue();
    // The first operations of a size connect; the communicator says so and must be asked until it has.
    const Clock::time_point deadline = Clock::now() + milliseconds(options_.operation_timeout_ms);
    while (result == ncclInProgress && Clock::now() < deadline && failed_.ok()) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
      if (!failed_.ok()) return failed_;
      if (nccl_.comm_error(communicator_, &result) != ncclSuccess) result = ncclInternalError;
    }
    if (result != ncclSuccess) {
      AbortLocked(result == ncclInProgress ? absl::DeadlineExceededError("NCCL: posting an operation took too long")
                                           : ToStatus(result));
      return failed_;
    }
    Operation& operation = operations_[(first_under_way_ + num_under_way_) % kMaxUnderWay];
    cudaEventRecord(operation.done, stream);
    operation.posted = Clock::now();
    ++num_under_way_;
    return absl::OkStatus();
  }

  void CollectDone() {
    while (num_under_way_ > 0 && cudaEventQuery(operations_[first_under_way_].done) == cudaSuccess) {
      first_under_way_ = (first_under_way_ + 1) % kMaxUnderWay;
      --num_under_way_;
    }
  }

  // The GPU is told at once, but NCCL goes on for up to half a second: a thread of its own that it waits for looks up
  // so often (ncclProxyServiceUDS, 2.28.9). Nobody waits for that but the destructor.
  void AbortLocked(const absl::Status& why) {
    if (failed_.ok()) failed_ = why;
    if (communicator_ != nullptr) {
      aborter_ =
          std::thread([this, communicator = std::exchange(communicator_, nullptr)] { nccl_.comm_abort(communicator); });
    }
    changed_.notify_all();
  }

  void Watch() {
    cudaSetDevice(ordinal_);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLookEvery, [&] { return stopping_ || !failed_.ok(); })) {
      ncclResult_t result = ncclSuccess;
      nccl_.comm_error(communicator_, &result);
      if (result != ncclSuccess && result != ncclInProgress) {
        AbortLocked(ToStatus(result));
        return;
      }
      CollectDone();
      if (num_under_way_ > 0 &&
          Clock::now() > operations_[first_under_way_].posted + milliseconds(options_.operation_timeout_ms)) {
        AbortLocked(absl::DeadlineExceededError(
            absl::StrCat("NCCL: an operation was not done within ", options_.operation_timeout_ms, " ms")));
        return;
      }
    }
  }

  const NcclLibrary& nccl_;
  const int ordinal_, rank_;
  const NcclPairOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_ from Connect's end on:
  ncclComm_t communicator_ = nullptr;
  absl::Status failed_;
  bool stopping_ = false;
  std::array<Operation, kMaxUnderWay> operations_;
  size_t first_under_way_ = 0, num_under_way_ = 0;
  std::thread aborter_;

  std::thread watchdog_;
};

}  // namespace

absl::StatusOr<std::string> NewNcclId() {
  WINNOW_ASSIGN_OR_RETURN(const NcclLibrary* nccl, LoadNccl());
  ncclUniqueId id;
  if (nccl->get_unique_id(&id) != ncclSuccess) return absl::UnavailableError("NCCL found no network interface");
  return std::string(id.internal, sizeof(id.internal));
}

absl::StatusOr<std::unique_ptr<NcclPair>> OpenNcclPair(Device& device, std::string_view id, int rank,
                                                       const NcclPairOptions& options) {
  ncclUniqueId unique_id;
  if (id.size() != sizeof(unique_id.internal) || (rank != 0 && rank != 1)) {
    return absl::InvalidArgumentError("an NCCL pair needs an id of NewNcclId and rank 0 or 1");
  }
  std::memcpy(unique_id.internal, id.data(), id.size());
  WINNOW_ASSIGN_OR_RETURN(const NcclLibrary* nccl, LoadNccl());
  auto pair = std::make_unique<Pair>(*nccl, device.ordinal(), rank, options);
  WINNOW_RETURN_IF_ERROR(pair->Connect(unique_id));
  return pair;
}

}  // namespace winnow::device
