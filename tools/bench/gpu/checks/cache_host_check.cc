#include "kernels/device/flash_d2h.h"
#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/cache_fixture.h"

namespace winnow {

// Rows of several steps to random places of host memory, through the copy engine and several threads.
void CheckFlashD2H(GpuContext& gpu) {
  constexpr size_t kRowBytes = 512, kRows = 3000, kPlaces = 20000;
  auto saver = device::FlashD2H::Create(gpu.device, kRows * kRowBytes, 3);
  if (!saver.ok()) {
    gpu.report.Fail("FlashD2H", std::string(saver.status().message()));
    return;
  }
  std::vector<std::byte> kept(kPlaces * kRowBytes), wanted(kPlaces * kRowBytes);
  std::vector<uint8_t*> steps;
  for (int step = 0; step < 6; ++step) steps.push_back(NewRandomBytes(gpu, kRows * kRowBytes));
  std::vector<uint32_t> places(kPlaces);
  std::iota(places.begin(), places.end(), 0u);
  std::shuffle(places.begin(), places.end(), gpu.random);
  uint64_t ticket = 0;
  for (size_t step = 0; step < steps.size(); ++step) {
    std::vector<std::byte*> destinations;  // of all steps different
    for (size_t i = 0; i < kRows; ++i) destinations.push_back(kept.data() + places[step * kRows + i] * kRowBytes);
    ticket = (*saver)->Save(gpu.stream, steps[step], kRowBytes, destinations);
    gpu.device.FillAsync(steps[step], 0xee, 64, gpu.stream);  // the rows may be written again at once
  }
  (*saver)->Await(ticket);
  for (size_t step = 0; step < steps.size(); ++step) {
    std::vector<uint8_t> rows = gpu.Download(steps[step], kRows * kRowBytes);
    // The first 64 bytes were overwritten: they are compared by what is kept alone.
    for (size_t i = 0; i < kRows; ++i) {
      std::byte* const to = wanted.data() + places[step * kRows + i] * kRowBytes;
      std::memcpy(to, rows.data() + i * kRowBytes, kRowBytes);
      if (i == 0) std::memcpy(to, kept.data() + places[step * kRows] * kRowBytes, 64);
    }
    const std::byte* const first = kept.data() + places[step * kRows] * kRowBytes;
    gpu.report.Check("FlashD2H takes rows before they are overwritten",
                     std::all_of(first, first + 64, [](std::byte byte) { return byte == std::byte{0xee}; }), 0);
  }
  gpu.report.Check("FlashD2H", Differences(kept, wanted), 0);
  saver->reset();
  gpu.FreeAll();
}

}  // namespace winnow
