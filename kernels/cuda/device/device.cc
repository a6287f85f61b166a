#include "kernels/device/device.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/device/confined_stream.h"
#include "kernels/cuda/device/open_device.h"
#include "kernels/cuda/device/row_moves.cuh"
#include "kernels/cuda/device/tiered_memory.h"

namespace winnow::device {
namespace {

absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

class Memory final : public DeviceMemory {
 public:
  enum class Kind { kDevice, kPinned, kImported };
  Memory(int ordinal, Kind kind, void* data, size_t bytes)
      : ordinal_(ordinal), kind_(kind), data_(data), bytes_(bytes) {}
  ~Memory() override {
    cudaSetDevice(ordinal_);
    if (kind_ == Kind::kDevice) cudaFree(data_);
    if (kind_ == Kind::kPinned) cudaFreeHost(data_);
    if (kind_ == Kind::kImported) cudaIpcCloseMemHandle(data_);
  }
  void* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  const int ordinal_;
  const Kind kind_;
  void* const data_;
  const size_t bytes_;
};

class CapturedGraph final : public Graph {
 public:
  CapturedGraph(int ordinal, cudaGraphExec_t exec) : ordinal_(ordinal), exec_(exec) {}
  ~CapturedGraph() override { cudaGraphExecDestroy(exec_); }
  void Launch(Stream stream) override {
    cudaSetDevice(ordinal_);
    cudaGraphLaunch(exec_, stream);
  }

 private:
  const int ordinal_;
  const cudaGraphExec_t exec_;
};

class StreamEvent final : public Event {
 public:
  StreamEvent(int ordinal, cudaEvent_t event) : ordinal_(ordinal), event_(event) {}
  ~StreamEvent() override { cudaEventDestroy(event_); }
  void Record(Stream stream) override {
    cudaSetDevice(ordinal_);
    recorded_ = cudaEventRecord(event_, stream);
  }
  void Hold(Stream stream) override { cudaStreamWaitEvent(stream, event_); }
  absl::Status Wait() override {
    if (recorded_ != cudaSuccess) return ToStatus(recorded_, "cudaEventRecord");
    return ToStatus(cudaEventSynchronize(event_), "on the GPU");
  }
  absl::StatusOr<bool> HasPassed() override {
    if (recorded_ != cudaSuccess) return ToStatus(recorded_, "cudaEventRecord");
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      if (cudaPeekAtLastError() == error) cudaGetLastError();  // no launch's error
      return false;
    }
    if (error != cudaSuccess) return ToStatus(error, "on the GPU");
    return true;
  }

 private:
  const int ordinal_;
  const cudaEvent_t event_;
  cudaError_t recorded_ = cudaSuccess;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, DeviceInfo info) : ordinal_(ordinal), info_(std::move(info)) {}
  ~CudaDevice() override {
    Bind();
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (const cudaEvent_t event : {start_, stop_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  const DeviceInfo& info() const override { return info_; }
  int ordinal() const override { return ordinal_; }
  void Bind() override { cudaSetDevice(ordinal_); }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes) override {
    Bind();
    void* data = nullptr;
    const absl::Status status = ToStatus(cudaMalloc(&data, bytes), "cudaMalloc");
    if (!status.ok()) return Explain(status, bytes);
    return std::make_unique<Memory>(ordinal_, Memory::Kind::kDevice, data, bytes);
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes) override {
    Bind();
    void* data = nullptr;
    const absl::Status status =
        ToStatus(cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
    if (!status.ok()) return Explain(status, bytes);
    return std::make_unique<Memory>(ordinal_, Memory::Kind::kPinned, data, bytes);
  }

  absl::StatusOr<std::shared_ptr<void>> Pin(void* memory, size_t bytes) override {
    Bind();
    const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      cudaGetLastError();  // nothing was launched: the device goes on
      return ToStatus(error, "cudaHostRegister");
    }
    return std::shared_ptr<void>(memory, [ordinal = ordinal_](void* pinned) {
      cudaSetDevice(ordinal);
      cudaHostUnregister(pinned);
    });
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateTiered(size_t device_bytes, size_t host_bytes) override {
    Bind();
    return AllocateTieredMemory(ordinal_, device_bytes, host_bytes);
  }

  Stream NewStream(bool high_priority) override {
    Bind();
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high_priority ? greatest : least);
    streams_.push_back(stream);
    return stream;
  }

  absl::StatusOr<Stream> NewConfinedStream(int num_multiprocessors) override {
    Bind();
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    WINNOW_ASSIGN_OR_RETURN(const Stream stream, device::NewConfinedStream(ordinal_, num_multiprocessors, greatest));
    streams_.push_back(stream);
    return stream;
  }

  void CopyAsync(void* to, const void* from, size_t bytes, Stream stream) override {
    Bind();
    Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  }
  void CopyRowsAsync(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                     size_t num_rows, Stream stream) override {
    if (to_stride == row_bytes && from_stride == row_bytes) return CopyAsync(to, from, row_bytes * num_rows, stream);
    Bind();
    Note(cudaMemcpy2DAsync(to, to_stride, from, from_stride, row_bytes, num_rows, cudaMemcpyDefault, stream));
  }
  void FillAsync(void* to, int byte, size_t bytes, Stream stream) override {
    Bind();
    Note(cudaMemsetAsync(to, byte, bytes, stream));
  }
  absl::Status Synchronize(Stream stream) override {
    Bind();
    if (absl::Status status = CheckLaunches(); !status.ok()) return status;
    return ToStatus(cudaStreamSynchronize(stream), "on the GPU");
  }
  absl::Status SynchronizeAll() override {
    Bind();
    if (absl::Status status = CheckLaunches(); !status.ok()) return status;
    return ToStatus(cudaDeviceSynchronize(), "on the GPU");
  }
  std::unique_ptr<Event> NewEvent() override {
    Bind();
    cudaEvent_t event = nullptr;
    Note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return std::make_unique<StreamEvent>(ordinal_, event);
  }
  absl::Status CheckLaunches() override {
    Bind();
    Note(cudaGetLastError());
    return ToStatus(std::exchange(first_error_, cudaSuccess), "launch");
  }

  absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream stream, const std::function<void(Stream)>& enqueue) override {
    Bind();
    if (absl::Status status = CheckLaunches(); !status.ok()) return status;
    if (absl::Status status = ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        !status.ok()) {
      return status;
    }
    enqueue(stream);
    cudaGraph_t graph = nullptr;
    if (absl::Status status = ToStatus(cudaStreamEndCapture(stream, &graph), "capture"); !status.ok()) return status;
    cudaGraphExec_t exec = nullptr;
    absl::Status status = ToStatus(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cudaGraphDestroy(graph);
    if (!status.ok()) return status;
    if (status = CheckLaunches(); !status.ok()) {
      cudaGraphExecDestroy(exec);
      return status;
    }
    return std::make_unique<CapturedGraph>(ordinal_, exec);
  }

  absl::StatusOr<double> TimeUs(Stream stream, const std::function<void(Stream)>& enqueue) override {
    Bind();
    if (start_ == nullptr) {
      cudaEventCreate(&start_);
      cudaEventCreate(&stop_);
    }
    cudaEventRecord(start_, stream);
    enqueue(stream);
    cudaEventRecord(stop_, stream);
    if (absl::Status status = Synchronize(stream); !status.ok()) return status;
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, start_, stop_);
    return milliseconds * 1000.0;
  }

  absl::Status EnablePeerAccess(int peer_ordinal) override {
    Bind();
    int can = 0;
    cudaDeviceCanAccessPeer(&can, ordinal_, peer_ordinal);
    if (can == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("GPU ", ordinal_, " cannot reach the memory of GPU ", peer_ordinal));
    }
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer_ordinal, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
      return absl::OkStatus();
    }
    return ToStatus(error, "cudaDeviceEnablePeerAccess");
  }

  absl::StatusOr<IpcHandle> Export(const DeviceMemory& memory) override {
    Bind();
    cudaIpcMemHandle_t handle;
    if (absl::Status status = ToStatus(cudaIpcGetMemHandle(&handle, memory.data()), "cudaIpcGetMemHandle");
        !status.ok()) {
      return status;
    }
    IpcHandle out;
    static_assert(sizeof(out) == sizeof(handle));
    std::memcpy(&out, &handle, sizeof(out));
    return out;
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Import(const IpcHandle& handle, size_t bytes) override {
    Bind();
    cudaIpcMemHandle_t ipc;
    std::memcpy(&ipc, &handle, sizeof(ipc));
    void* data = nullptr;
    const absl::Status status =
        ToStatus(cudaIpcOpenMemHandle(&data, ipc, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    if (!status.ok()) {
      cudaGetLastError();  // nothing was launched: the device goes on
      return absl::FailedPreconditionError(
          absl::StrCat("GPU ", ordinal_, " cannot map another process's memory: ", status.message()));
    }
    return std::make_unique<Memory>(ordinal_, Memory::Kind::kImported, data, bytes);
  }

 private:
  void Note(cudaError_t error) {
    if (first_error_ == cudaSuccess) first_error_ = error;
  }
  absl::Status Explain(const absl::Status& status, size_t bytes) const {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return absl::Status(status.code(), absl::StrCat(status.message(), " (", bytes, " bytes asked of GPU ", ordinal_,
                                                    ", ", free, " of ", total, " free)"));
  }

  const int ordinal_;
  const DeviceInfo info_;
  cudaError_t first_error_ = cudaSuccess;
  std::vector<cudaStream_t> streams_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

// Before the first CUDA call of the process. A kernel that is loaded at its first launch waits for the kernels that
// run, and one of those may be waiting for what that launch does: all kernels are loaded at start.
void LoadKernelsAtStart() {
  static const int done = setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  (void)done;
}

}  // namespace

int DeviceCount() {
  LoadKernelsAtStart();
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

const char* WhyNoDevice() {
  LoadKernelsAtStart();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  return error == cudaSuccess ? "there is no GPU" : cudaGetErrorString(error);
}

DriverVersions Versions() {
  DriverVersions versions;
  if (cudaRuntimeGetVersion(&versions.runtime) != cudaSuccess) versions.runtime = 0;
  if (cudaDriverGetVersion(&versions.driver) != cudaSuccess) versions.driver = 0;
  return versions;
}

bool CanAccessPeer(int ordinal, int peer_ordinal) {
  int can = 0;
  return cudaDeviceCanAccessPeer(&can, ordinal, peer_ordinal) == cudaSuccess && can != 0;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int ordinal) {
  const int count = DeviceCount();
  if (ordinal < 0 || ordinal >= count) {
    return absl::NotFoundError(absl::StrCat("GPU ", ordinal, " was asked for, and there are ", count));
  }
  cudaDeviceProp properties;
  if (absl::Status status = ToStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ToStatus(cudaSetDevice(ordinal), "cudaSetDevice"); !status.ok()) return status;
  DeviceInfo info{.name = properties.name,
                  .compute_major = properties.major,
                  .compute_minor = properties.minor,
                  .num_multiprocessors = properties.multiProcessorCount,
                  .l2_bytes = static_cast<size_t>(properties.l2CacheSize),
                  .total_bytes = 0,
                  .free_bytes = 0,
                  .pci_bus_id = {}};
  if (properties.major < 8) {
    return absl::FailedPreconditionError(absl::StrCat("GPU ", ordinal, " (", info.name, ") has compute capability ",
                                                      properties.major, ".", properties.minor,
                                                      ", and 8.0 is the least"));
  }
  if (const absl::Status status = ToStatus(LoadRowKernels(), "kernels"); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this build has no kernels for GPU ", ordinal, " (", info.name, ", compute capability ", properties.major, ".",
        properties.minor, "; see WINNOW_CUDA_ARCHITECTURES): ", std::string(status.message())));
  }
  if (absl::Status status = ToStatus(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "cudaMemGetInfo");
      !status.ok()) {
    return status;
  }
  char bus_id[32] = {};
  cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal);
  info.pci_bus_id = bus_id;
  return std::make_unique<CudaDevice>(ordinal, std::move(info));
}

}  // namespace winnow::device
