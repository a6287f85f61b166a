#include "tools/bench/gpu/gpu_context.h"

#include <algorithm>

namespace winnow {

double GpuContext::MedianUs(int sets, int launches, const std::function<void(device::Stream, int set)>& enqueue,
                            int replays) {
  for (int set = 0; set < sets; ++set) enqueue(stream, set);  // warms up, and finds bad launches
  if (const absl::Status status = device.Synchronize(stream); !status.ok()) {
    report.Fail("launch", std::string(status.message()));
    return 0;
  }
  const int count = std::max(sets, launches);
  absl::StatusOr<std::unique_ptr<device::Graph>> graph = device.Capture(stream, [&](device::Stream captured) {
    for (int i = 0; i < count; ++i) enqueue(captured, i % sets);
  });
  if (!graph.ok()) {
    report.Fail("capture", std::string(graph.status().message()));
    return 0;
  }
  std::vector<double> times;
  for (int i = 0; i < replays + 2; ++i) {
    const absl::StatusOr<double> us = device.TimeUs(stream, [&](device::Stream timed) { (*graph)->Launch(timed); });
    if (!us.ok()) {
      report.Fail("replay", std::string(us.status().message()));
      return 0;
    }
    if (i >= 2) times.push_back(*us / count);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace winnow
