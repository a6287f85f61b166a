#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace winnow::chaos {

// A disk that may be filled without harm to anybody else: small file systems in memory at a folder of its own, for
// logs and temporary files, and at /dev/shm. They are seen by this process and by those that it starts from then on.
class SmallDisk {
 public:
  static constexpr int64_t kBytes = int64_t{64} << 20;  // of each file system: what containers get for /dev/shm

  // The process must have mounts of its own (TakeOwnMounts).
  static absl::StatusOr<std::unique_ptr<SmallDisk>> Mount();
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  const std::string& folder() const { return folder_; }
  std::string log_file() const { return folder_ + "/winnow.log"; }

  // Writes until nothing more can be written, which it may be called again for; and takes that back.
  void Fill() const;
  void Release() const;
  // Of both file systems together.
  int64_t FreeBytes() const;
  // What the file system says to a byte more at the end of the log; OK: it has been taken.
  absl::Status TryToWrite() const;

 private:
  SmallDisk() = default;
  std::vector<std::string> Folders() const { return {folder_, "/dev/shm"}; }

  std::string folder_;
};

}  // namespace winnow::chaos
