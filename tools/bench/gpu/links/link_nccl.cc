#include "tools/bench/gpu/checks/cache_fixture.h"
#include "tools/bench/gpu/links/link_sections.h"

namespace winnow {

std::unique_ptr<device::NcclPair> LinkBench::OpenNccl() {
  const absl::StatusOr<std::string> id = is_receiver() ? gpu_.table.new_nccl_id() : std::string();
  Check(id.status());
  const std::string peers = process_.socket.Exchange(id.value_or(""));
  auto pair =
      gpu_.table.open_nccl_pair(gpu_.device, is_receiver() ? id.value_or("") : peers, is_receiver() ? 0 : 1, {});
  Check(pair.status());
  return pair.ok() ? *std::move(pair) : nullptr;
}

void LinkBench::RunNccl() {
  const std::unique_ptr<device::NcclPair> pair = OpenNccl();
  if (pair == nullptr) return;
  for (const size_t bytes : {size_t{4} << 10, size_t{1} << 20, size_t{4} << 20, size_t{32} << 20, size_t{256} << 20}) {
    const size_t moved = device::NcclBytes(bytes);
    uint8_t* const buffer = is_receiver() ? gpu_.New<uint8_t>(moved) : NewRandomBytes(gpu_, moved);
    constexpr int kOperations = 20;
    double best_us = 1e9;
    for (int replay = 0; replay < 4; ++replay) {
      process_.socket.Barrier();
      const absl::StatusOr<double> us = gpu_.device.TimeUs(gpu_.stream, [&](device::Stream stream) {
        for (int i = 0; i < kOperations; ++i) {
          Check(is_receiver() ? pair->Receive(stream, buffer, bytes) : pair->Send(stream, buffer, bytes));
        }
      });
      Check(us.status());
      best_us = std::min(best_us, us.value_or(1e9) / kOperations);
    }
    const std::vector<uint8_t> got = gpu_.Download(buffer, moved);
    const std::string peers = process_.socket.Exchange(std::string(got.begin(), got.end()));
    if (is_receiver()) {
      gpu_.report.Check("NCCL, " + std::to_string(bytes) + " bytes", std::string(got.begin(), got.end()) != peers, 0);
      gpu_.report.Time("NCCL, " + std::to_string(bytes) + " bytes", best_us, bytes / kLinkBytesPerUs);
    }
    gpu_.FreeAll();
  }
}

}  // namespace winnow
