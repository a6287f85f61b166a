// A disk that is full.
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "cmd/chaos/faults/fault.h"

namespace winnow::chaos {
namespace {

constexpr std::chrono::milliseconds kDiskLook{100};

// Of all logs together.
uintmax_t LogBytes(const SmallDisk& disk) {
  uintmax_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(disk.folder(), ignored)) {
    if (entry.path().native().starts_with(disk.log_file())) bytes += entry.file_size(ignored);
  }
  return bytes;
}

}  // namespace

Effect FillDisk(const Strike& strike, const SmallDisk& disk, const std::stop_token& stop) {
  const uintmax_t log_before = LogBytes(disk);
  const int64_t free_before = disk.FreeBytes();
  int looks = 0, full = 0;
  std::string why = "nothing was refused";
  {
    const absl::Cleanup release = [&] { disk.Release(); };
    const Clock::time_point until = Clock::now() + strike.lasts;
    do {
      if (!strike.pretend) disk.Fill();  // again, as somebody may have deleted a file
      const absl::Status written = disk.TryToWrite();
      ++looks;
      full += !written.ok();
      if (!written.ok()) why = std::string(written.message());
    } while (Clock::now() < until && SleepFor(kDiskLook, stop));
  }
  return {.seen = full == looks,
          .evidence = absl::StrFormat("%.0f MiB were free before; at %d of %d looks nothing could be written (%s); the "
                                      "logs grew by %d bytes meanwhile",
                                      static_cast<double>(free_before) / 1048576.0, full, looks, why,
                                      LogBytes(disk) - log_before)};
}

}  // namespace winnow::chaos
