#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Numbered as 1000 * major + 10 * minor: 13020 is 13.2. 0: none.
struct DriverVersions {
  int runtime = 0;
  int driver = 0;
};

// Device memory, freed when the handle dies. Taken at start and handed out by arenas: nothing allocates in a step.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* data() const = 0;
  virtual size_t bytes() const = 0;
};

// A captured sequence of launches.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Launch(Stream stream) = 0;
};

// A point in a stream's work, recorded anew as often as wanted. Within a capture it forks or joins the graph.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Record(Stream stream) = 0;
  // What is enqueued on `stream` from now on starts when what was recorded last has ended.
  virtual void Hold(Stream stream) = 0;
  // The host waits until what was recorded last has ended; not at all where nothing was. Returns its error, or that of
  // earlier work if it was sticky.
  virtual absl::Status Wait() = 0;
  // Whether what was recorded last has ended, without waiting; true where nothing was. Errors as those of Wait.
  virtual absl::StatusOr<bool> HasPassed() = 0;
};

// What another process needs to map memory of this one.
struct IpcHandle {
  unsigned char bytes[64];
};

struct DeviceInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int num_multiprocessors = 0;
  size_t l2_bytes = 0;
  size_t total_bytes = 0;
  size_t free_bytes = 0;
  std::string pci_bus_id;
};

// One GPU. Used by one thread at a time; calls bind the thread to the device. After a sticky error every call fails
// with INTERNAL and the driver's name of the error: the process has to end.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual int ordinal() const = 0;
  // What this thread launches from now on runs on this device.
  virtual void Bind() = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes) = 0;  // of the host, mapped
  // Makes memory of this process, whole pages, such as AllocatePinned gives, until what is returned is destroyed.
  virtual absl::StatusOr<std::shared_ptr<void>> Pin(void* memory, size_t bytes) = 0;
  // One range of addresses for kernels: device_bytes of this device's memory, then pinned DRAM. UNIMPLEMENTED where the
  // driver cannot.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateTiered(size_t device_bytes, size_t host_bytes) {
    static_cast<void>(device_bytes), static_cast<void>(host_bytes);
    return absl::UnimplementedError("no range of addresses over two kinds of memory");
  }
  virtual Stream NewStream(bool high_priority = false) = 0;  // owned by the device
  // One of high priority, whose kernels run on that many multiprocessors alone, or on the few more that the driver's
  // groups of them make: those of other streams find the rest free. Owned by the device. UNIMPLEMENTED where the driver
  // cannot.
  virtual absl::StatusOr<Stream> NewConfinedStream(int num_multiprocessors) {
    static_cast<void>(num_multiprocessors);
    return absl::UnimplementedError("no streams on a part of the multiprocessors");
  }
  virtual void CopyAsync(void* to, const void* from, size_t bytes, Stream stream) = 0;  // any direction
  // num_rows pieces of row_bytes, which lie that many bytes apart.
  virtual void CopyRowsAsync(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                             size_t num_rows, Stream stream) = 0;
  virtual void FillAsync(void* to, int byte, size_t bytes, Stream stream) = 0;
  virtual absl::Status Synchronize(Stream stream) = 0;
  virtual absl::Status SynchronizeAll() = 0;  // of this device
  virtual std::unique_ptr<Event> NewEvent() = 0;
  virtual absl::Status CheckLaunches() = 0;  // the error of the launches since the last call

  // Captures what `enqueue` launches on the stream. A device without graphs keeps it, and calls it at every launch.
  virtual absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream stream, const std::function<void(Stream)>& enqueue) = 0;
  // Time of `enqueue` on the device, in microseconds, between two events.
  virtual absl::StatusOr<double> TimeUs(Stream stream, const std::function<void(Stream)>& enqueue) = 0;

  // Peers: of this process by ordinal, of other processes by handle. FAILED_PRECONDITION says what is missing.
  virtual absl::Status EnablePeerAccess(int peer_ordinal) = 0;
  virtual absl::StatusOr<IpcHandle> Export(const DeviceMemory& memory) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Import(const IpcHandle& handle, size_t bytes) = 0;
};

}  // namespace winnow::device
