#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/cuda/device.h"

namespace winnow {

// A "GPU" whose memory is the host's and whose copies happen at once: for tests of code that places things in device
// memory. It runs no kernels.
class HostDevice final : public cuda::Device {
 public:
  explicit HostDevice(size_t total_bytes) {
    info_.name = "host memory";
    info_.total_bytes = info_.free_bytes = total_bytes;
  }

  const cuda::DeviceInfo& info() const override { return info_; }
  int ordinal() const override { return 0; }
  absl::StatusOr<std::unique_ptr<cuda::DeviceMemory>> Allocate(size_t bytes) override {
    ++allocations;
    return std::make_unique<Memory>(bytes);
  }
  absl::StatusOr<std::unique_ptr<cuda::DeviceMemory>> AllocatePinned(size_t bytes) override { return Allocate(bytes); }
  cuda::Stream NewStream(bool) override { return nullptr; }
  void CopyAsync(void* to, const void* from, size_t bytes, cuda::Stream) override { std::memcpy(to, from, bytes); }
  void FillAsync(void* to, int byte, size_t bytes, cuda::Stream) override { std::memset(to, byte, bytes); }
  void Order(cuda::Stream, cuda::Stream) override {}
  absl::Status Synchronize(cuda::Stream) override { return absl::OkStatus(); }
  absl::Status CheckLaunches() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<cuda::Graph>> Capture(cuda::Stream,
                                                       const std::function<void(cuda::Stream)>&) override {
    return absl::UnimplementedError("no graphs");
  }
  absl::StatusOr<double> TimeUs(cuda::Stream, const std::function<void(cuda::Stream)>&) override {
    return absl::UnimplementedError("no clock");
  }
  absl::Status EnablePeerAccess(int) override { return absl::FailedPreconditionError("no peers"); }
  absl::StatusOr<cuda::IpcHandle> Export(const cuda::DeviceMemory&) override {
    return absl::UnimplementedError("no handles");
  }
  absl::StatusOr<std::unique_ptr<cuda::DeviceMemory>> Import(const cuda::IpcHandle&, size_t) override {
    return absl::UnimplementedError("no handles");
  }

  int allocations = 0;

 private:
  class Memory final : public cuda::DeviceMemory {
   public:
    explicit Memory(size_t bytes) : data_(std::malloc(bytes)), bytes_(bytes) { std::memset(data_, 0xa5, bytes); }
    ~Memory() override { std::free(data_); }
    void* data() const override { return data_; }
    size_t bytes() const override { return bytes_; }

   private:
    void* const data_;
    const size_t bytes_;
  };

  cuda::DeviceInfo info_;
};

}  // namespace winnow
