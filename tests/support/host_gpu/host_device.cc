#include "tests/support/host_gpu/host_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "tests/support/host_gpu/host_table.h"
#include "tests/support/host_gpu/host_weights.h"

namespace winnow::test {
namespace {

constexpr size_t kTotalBytes = size_t{8} << 30;

std::atomic<size_t> device_bytes = 0;

// Memory that other processes can map: what a handle names is a file of this process.
class HostMemory final : public device::DeviceMemory {
 public:
  HostMemory(size_t bytes, bool of_device) : HostMemory(memfd_create("host gpu", MFD_CLOEXEC), bytes) {
    if (of_device) device_bytes += counted_bytes_ = bytes;
    WINNOW_CHECK(file_ >= 0 && ftruncate(file_, static_cast<off_t>(bytes)) == 0);
    Map();
    // NaN: nobody may count on zeros. What is larger is mostly never touched.
    std::memset(data_, 0xff, std::min(bytes, size_t{64} << 20));
  }
  HostMemory(int file, size_t bytes) : file_(file), bytes_(bytes) {}
  ~HostMemory() override {
    if (data_ != nullptr) {
      ForgetMatrices(data_, static_cast<std::byte*>(data_) + MappedBytes());
      munmap(data_, MappedBytes());
    }
    close(file_);
    device_bytes -= counted_bytes_;
  }
  void Map() {
    data_ = mmap(nullptr, MappedBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    WINNOW_CHECK(data_ != MAP_FAILED);
  }
  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  int file() const { return file_; }

 private:
  size_t MappedBytes() const { return std::max<size_t>(bytes_, 1); }

  const int file_;
  const size_t bytes_;
  size_t counted_bytes_ = 0;
  void* data_ = nullptr;
};

struct SharedFile {
  pid_t process;
  int file;
};
static_assert(sizeof(SharedFile) <= sizeof(device::IpcHandle));

class HostGraph final : public device::Graph {
 public:
  explicit HostGraph(std::function<void(device::Stream)> enqueue) : enqueue_(std::move(enqueue)) {}
  void Launch(device::Stream stream) override { enqueue_(stream); }

 private:
  const std::function<void(device::Stream)> enqueue_;
};

class HostDevice final : public device::Device {
 public:
  explicit HostDevice(int ordinal) : ordinal_(ordinal) {
    info_.name = "host memory";
    info_.compute_major = 9;
    info_.num_multiprocessors = 1;
    info_.total_bytes = info_.free_bytes = kTotalBytes;
    info_.pci_bus_id = absl::StrCat("none:", ordinal);
    if (const char* path = std::getenv("WINNOW_HOST_GPU_FAULT"); path != nullptr) fault_file_ = path;
  }

  absl::Status Wait() {
    if (!fault_file_.empty() && !failed_) {
      std::ifstream file(fault_file_);
      pid_t pid = 0;
      int ordinal = 0;
      failed_ = file >> pid && pid == getpid() && (!(file >> ordinal) || ordinal == ordinal_);
    }
    if (failed_) return absl::InternalError("on the GPU: cudaErrorIllegalAddress, as it was asked for");
    return absl::OkStatus();
  }

  const device::DeviceInfo& info() const override { return info_; }
  int ordinal() const override { return ordinal_; }
  void Bind() override {}
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> Allocate(size_t bytes) override {
    if (bytes > info_.free_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes asked, ", info_.free_bytes, " free"));
    }
    return std::make_unique<HostMemory>(bytes, /*of_device=*/true);
  }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> AllocatePinned(size_t bytes) override {
    if (bytes > info_.free_bytes) return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes asked"));
    return std::make_unique<HostMemory>(bytes, /*of_device=*/false);
  }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> AllocateTiered(size_t device_bytes,
                                                                       size_t host_bytes) override {
    if (device_bytes > info_.free_bytes)
      return absl::ResourceExhaustedError(absl::StrCat(device_bytes, " bytes asked"));
    return std::make_unique<HostMemory>(device_bytes + host_bytes, /*of_device=*/false);
  }
  absl::StatusOr<std::shared_ptr<void>> Pin(void* memory, size_t) override {
    return std::shared_ptr<void>(memory, [](void*) {});
  }
  device::Stream NewStream(bool) override { return nullptr; }
  absl::StatusOr<device::Stream> NewConfinedStream(int) override { return nullptr; }
  void CopyAsync(void* to, const void* from, size_t bytes, device::Stream) override { std::memcpy(to, from, bytes); }
  void CopyRowsAsync(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                     size_t num_rows, device::Stream) override {
    for (size_t i = 0; i < num_rows; ++i) {
      std::memcpy(static_cast<std::byte*>(to) + i * to_stride, static_cast<const std::byte*>(from) + i * from_stride,
                  row_bytes);
    }
  }
  void FillAsync(void* to, int byte, size_t bytes, device::Stream) override { std::memset(to, byte, bytes); }
  absl::Status Synchronize(device::Stream) override { return Wait(); }
  absl::Status SynchronizeAll() override { return Wait(); }
  absl::Status CheckLaunches() override { return Wait(); }
  std::unique_ptr<device::Event> NewEvent() override;
  absl::StatusOr<std::unique_ptr<device::Graph>> Capture(device::Stream,
                                                         const std::function<void(device::Stream)>& enqueue) override {
    return std::make_unique<HostGraph>(enqueue);
  }
  absl::StatusOr<double> TimeUs(device::Stream stream, const std::function<void(device::Stream)>& enqueue) override {
    enqueue(stream);
    return 1.0;
  }
  absl::Status EnablePeerAccess(int peer_ordinal) override {
    if (std::getenv("WINNOW_HOST_GPU_NO_PEERS") == nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", ordinal_, " cannot reach the memory of GPU ", peer_ordinal));
  }
  absl::StatusOr<device::IpcHandle> Export(const device::DeviceMemory& memory) override {
    const SharedFile shared{getpid(), static_cast<const HostMemory&>(memory).file()};
    device::IpcHandle handle{};
    std::memcpy(handle.bytes, &shared, sizeof shared);
    return handle;
  }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> Import(const device::IpcHandle& handle, size_t bytes) override {
    SharedFile shared;
    std::memcpy(&shared, handle.bytes, sizeof shared);
    const int file = open(absl::StrCat("/proc/", shared.process, "/fd/", shared.file).c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return absl::FailedPreconditionError("memory of that process cannot be mapped");
    auto memory = std::make_unique<HostMemory>(file, bytes);
    memory->Map();
    return memory;
  }

 private:
  const int ordinal_;
  device::DeviceInfo info_;
  std::string fault_file_;
  bool failed_ = false;
};

class HostEvent final : public device::Event {
 public:
  explicit HostEvent(HostDevice& device) : device_(device) {}
  void Record(device::Stream) override {}
  void Hold(device::Stream) override {}
  absl::Status Wait() override { return device_.Wait(); }
  absl::StatusOr<bool> HasPassed() override {
    if (absl::Status status = device_.Wait(); !status.ok()) return status;
    return true;
  }

 private:
  HostDevice& device_;
};

std::unique_ptr<device::Event> HostDevice::NewEvent() {
  return std::make_unique<HostEvent>(*this);
}

}  // namespace

size_t HostDeviceBytes() {
  return device_bytes;
}

absl::StatusOr<std::unique_ptr<device::Device>> OpenHostDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= kHostDevices) {
    return absl::NotFoundError(absl::StrCat("GPU ", ordinal, " was asked for, and there are ", kHostDevices));
  }
  return std::make_unique<HostDevice>(ordinal);
}

}  // namespace winnow::test
