#include "cmd/chaos/sandbox/small_disk.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cmd/chaos/sandbox/mounts.h"
#include "cmd/up/child_process.h"

namespace winnow::chaos {
namespace {

constexpr char kFillName[] = "/winnow-chaos-fill";

}  // namespace

absl::StatusOr<std::unique_ptr<SmallDisk>> SmallDisk::Mount() {
  std::unique_ptr<SmallDisk> disk(new SmallDisk());
  char name[] = "/tmp/winnow-chaos-XXXXXX";
  if (mkdtemp(name) == nullptr) return absl::FailedPreconditionError(absl::StrCat(name, ": ", strerror(errno)));
  disk->folder_ = name;
  for (const std::string& folder : disk->Folders()) WINNOW_RETURN_IF_ERROR(MountMemory(folder, kBytes));
  return disk;
}

SmallDisk::~SmallDisk() {
  umount2(folder_.c_str(), MNT_DETACH);
  umount2("/dev/shm", MNT_DETACH);
  rmdir(folder_.c_str());
}

void SmallDisk::Fill() const {
  const std::string block(1 << 16, 'x');
  for (const std::string& folder : Folders()) {
    const UniqueFd file(open((folder + kFillName).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    for (size_t size = block.size(); file.get() >= 0 && size > 0;) {
      if (write(file.get(), block.data(), size) <= 0) size /= 2;
    }
  }
}

void SmallDisk::Release() const {
  for (const std::string& folder : Folders()) unlink((folder + kFillName).c_str());
}

int64_t SmallDisk::FreeBytes() const {
  int64_t bytes = 0;
  for (const std::string& folder : Folders()) {
    struct statvfs system {};
    if (statvfs(folder.c_str(), &system) == 0) bytes += static_cast<int64_t>(system.f_bavail * system.f_frsize);
  }
  return bytes;
}

absl::Status SmallDisk::TryToWrite() const {
  // A page at once, as the last one of the log may have room for a line.
  const std::string page(8192, ' ');
  const std::string path = folder_ + "/winnow-chaos-try";
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const bool written = file.get() >= 0 && write(file.get(), page.data(), page.size()) > 0;
  const int error = errno;
  unlink(path.c_str());
  return written ? absl::OkStatus() : absl::ResourceExhaustedError(strerror(error));
}

}  // namespace winnow::chaos
