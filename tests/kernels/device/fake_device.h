#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

namespace winnow::device {

class FakeMemory final : public DeviceMemory {
 public:
  explicit FakeMemory(size_t bytes) : bytes_(bytes, 0xff) {}
  void* data() const override { return const_cast<uint8_t*>(bytes_.data()); }
  size_t bytes() const override { return bytes_.size(); }

 private:
  std::vector<uint8_t> bytes_;
};

// Of streams that do everything at once: it has always happened.
class FakeEvent final : public Event {
 public:
  void Record(Stream) override {}
  void Hold(Stream) override {}
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::StatusOr<bool> HasPassed() override { return true; }
};

// A device without a GPU: memory of the host, and streams that do everything at once. A peer's memory cannot be mapped
// really; what Import gives is memory of its own.
class FakeDevice : public Device {
 public:
  explicit FakeDevice(std::string pci_bus_id) { info_.pci_bus_id = std::move(pci_bus_id); }

  const DeviceInfo& info() const override { return info_; }
  int ordinal() const override { return 0; }
  void Bind() override {}
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes) override {
    return std::make_unique<FakeMemory>(bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(size_t bytes) override {
    return std::make_unique<FakeMemory>(bytes);
  }
  absl::StatusOr<std::shared_ptr<void>> Pin(void* memory, size_t) override {
    return std::shared_ptr<void>(memory, [](void*) {});
  }
  Stream NewStream(bool) override { return nullptr; }
  void CopyAsync(void* to, const void* from, size_t bytes, Stream) override { std::memcpy(to, from, bytes); }
  void CopyRowsAsync(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                     size_t num_rows, Stream) override {
    for (size_t i = 0; i < num_rows; ++i) {
      std::memcpy(static_cast<std::byte*>(to) + i * to_stride, static_cast<const std::byte*>(from) + i * from_stride,
                  row_bytes);
    }
  }
  void FillAsync(void* to, int byte, size_t bytes, Stream) override { std::memset(to, byte, bytes); }
  absl::Status Synchronize(Stream) override { return absl::OkStatus(); }
  absl::Status SynchronizeAll() override { return absl::OkStatus(); }
  std::unique_ptr<Event> NewEvent() override { return std::make_unique<FakeEvent>(); }
  absl::Status CheckLaunches() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream, const std::function<void(Stream)>&) override {
    return absl::UnimplementedError("no graphs");
  }
  absl::StatusOr<double> TimeUs(Stream, const std::function<void(Stream)>&) override { return 0; }
  absl::Status EnablePeerAccess(int) override { return absl::OkStatus(); }
  absl::StatusOr<IpcHandle> Export(const DeviceMemory&) override { return IpcHandle{}; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Import(const IpcHandle&, size_t bytes) override {
    if (!import_error.ok()) return import_error;
    return std::make_unique<FakeMemory>(bytes);
  }

  absl::Status import_error;

 private:
  DeviceInfo info_;
};

}  // namespace winnow::device
