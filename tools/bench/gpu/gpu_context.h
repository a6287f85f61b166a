#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "kernels/plugin/device_table.h"
#include "tools/bench/gpu/report.h"

namespace winnow {

// What every family's checks and benchmarks get: the table, one device, a stream, the report, and the rates of this
// very GPU that floors are computed from.
class GpuContext {
 public:
  GpuContext(const device::DeviceTable& table, device::Device& device, GpuReport& report, uint64_t seed)
      : table(table), device(device), report(report), stream(device.NewStream()), random(seed) {}

  const device::DeviceTable& table;
  device::Device& device;
  GpuReport& report;
  const device::Stream stream;
  std::mt19937_64 random;
  // Under a sanitizer, which takes some hundred times as long: few cases of small sizes.
  bool few_small = false;
  double read_bytes_per_us = 4.55e6;  // measured by MeasureRates
  double copy_bytes_per_us = 4.3e6;   // bytes read plus bytes written

  // Device memory poisoned with NaNs (0xff), or holding a copy of host values.
  template <typename T>
  T* New(size_t count) {
    absl::StatusOr<std::unique_ptr<device::DeviceMemory>> memory =
        device.Allocate(std::max<size_t>(count * sizeof(T), 256));
    WINNOW_CHECK(memory.ok());
    device.FillAsync((*memory)->data(), 0xff, (*memory)->bytes(), stream);
    memory_.push_back(*std::move(memory));
    return static_cast<T*>(memory_.back()->data());
  }
  template <typename T>
  T* NewZeroed(size_t count) {
    T* data = New<T>(count);
    device.FillAsync(data, 0, count * sizeof(T), stream);
    return data;
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* data = New<T>(values.size());
    device.CopyAsync(data, values.data(), values.size() * sizeof(T), stream);
    WINNOW_CHECK(device.Synchronize(stream).ok());
    return data;
  }
  template <typename T>
  std::vector<T> Download(const T* data, size_t count) {
    std::vector<T> values(count);
    device.CopyAsync(values.data(), data, count * sizeof(T), stream);
    const absl::Status status = device.Synchronize(stream);
    if (!status.ok()) report.Fail("download", std::string(status.message()));
    return values;
  }
  // All of the cases, or `few` of them, drawn, where few_small.
  template <typename T>
  std::vector<T> Cases(const std::vector<T>& all, size_t few = 1) {
    if (!few_small) return all;
    std::vector<T> drawn;
    std::sample(all.begin(), all.end(), std::back_inserter(drawn), few, random);
    return drawn;
  }
  template <typename T>
  T Size(T size, T small) const {
    return few_small ? small : size;
  }
  // Frees everything New and Upload gave.
  void FreeAll() { memory_.clear(); }

  // Median time of one launch of enqueue(i), i the number of the input set: graphs of `launches` launches in a row over
  // `sets` input sets, replayed. Sets together should be several times the L2 where a cold cache is meant.
  double MedianUs(int sets, int launches, const std::function<void(device::Stream, int set)>& enqueue,
                  int replays = 15);

 private:
  std::vector<std::unique_ptr<device::DeviceMemory>> memory_;
};

// One family of kernels: checks against references, and times.
struct GpuSection {
  const char* name;
  void (*check)(GpuContext&);
  void (*bench)(GpuContext&);
};

}  // namespace winnow
