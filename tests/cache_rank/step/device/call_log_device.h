#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/device/device.h"

namespace winnow::test {

// A device that says in which order memory was copied and events were recorded.
class CallLogDevice final : public device::Device {
 public:
  explicit CallLogDevice(std::unique_ptr<device::Device> device) : device_(std::move(device)) {}

  std::vector<std::string> calls;  // "copy BYTES", "record"

  const device::DeviceInfo& info() const override { return device_->info(); }
  int ordinal() const override { return device_->ordinal(); }
  void Bind() override { device_->Bind(); }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> Allocate(size_t bytes) override {
    return device_->Allocate(bytes);
  }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> AllocatePinned(size_t bytes) override {
    return device_->AllocatePinned(bytes);
  }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> AllocateTiered(size_t device_bytes,
                                                                       size_t host_bytes) override {
    return device_->AllocateTiered(device_bytes, host_bytes);
  }
  absl::StatusOr<std::shared_ptr<void>> Pin(void* memory, size_t bytes) override { return device_->Pin(memory, bytes); }
  device::Stream NewStream(bool high_priority) override { return device_->NewStream(high_priority); }
  void CopyAsync(void* to, const void* from, size_t bytes, device::Stream stream) override {
    calls.push_back(absl::StrCat("copy ", bytes));
    device_->CopyAsync(to, from, bytes, stream);
  }
  void CopyRowsAsync(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                     size_t num_rows, device::Stream stream) override {
    device_->CopyRowsAsync(to, to_stride, from, from_stride, row_bytes, num_rows, stream);
  }
  void FillAsync(void* to, int byte, size_t bytes, device::Stream stream) override {
    device_->FillAsync(to, byte, bytes, stream);
  }
  absl::Status Synchronize(device::Stream stream) override { return device_->Synchronize(stream); }
  absl::Status SynchronizeAll() override { return device_->SynchronizeAll(); }
  absl::Status CheckLaunches() override { return device_->CheckLaunches(); }
  std::unique_ptr<device::Event> NewEvent() override {
    return std::make_unique<LoggedEvent>(device_->NewEvent(), &calls);
  }
  absl::StatusOr<std::unique_ptr<device::Graph>> Capture(device::Stream stream,
                                                         const std::function<void(device::Stream)>& enqueue) override {
    return device_->Capture(stream, enqueue);
  }
  absl::StatusOr<double> TimeUs(device::Stream stream, const std::function<void(device::Stream)>& enqueue) override {
    return device_->TimeUs(stream, enqueue);
  }
  absl::Status EnablePeerAccess(int peer_ordinal) override { return device_->EnablePeerAccess(peer_ordinal); }
  absl::StatusOr<device::IpcHandle> Export(const device::DeviceMemory& memory) override {
    return device_->Export(memory);
  }
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> Import(const device::IpcHandle& handle, size_t bytes) override {
    return device_->Import(handle, bytes);
  }

 private:
  class LoggedEvent final : public device::Event {
   public:
    LoggedEvent(std::unique_ptr<device::Event> event, std::vector<std::string>* calls)
        : event_(std::move(event)), calls_(calls) {}
    void Record(device::Stream stream) override {
      calls_->push_back("record");
      event_->Record(stream);
    }
    void Hold(device::Stream stream) override { event_->Hold(stream); }
    absl::Status Wait() override { return event_->Wait(); }
    absl::StatusOr<bool> HasPassed() override { return event_->HasPassed(); }

   private:
    const std::unique_ptr<device::Event> event_;
    std::vector<std::string>* const calls_;
  };

  const std::unique_ptr<device::Device> device_;
};

}  // namespace winnow::test
