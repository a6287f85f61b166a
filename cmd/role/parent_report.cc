#include "cmd/role/parent_report.h"

#include <unistd.h>

namespace winnow {

ParentReport::~ParentReport() {
  if (fd_ >= 0) close(fd_);
}

void ParentReport::Line(const std::string& line) {
  if (fd_ < 0) return;
  const std::string bytes = line + "\n";
  // A parent that is gone takes this process with it; there is nobody to tell.
  [[maybe_unused]] const ssize_t written = write(fd_, bytes.data(), bytes.size());
}

}  // namespace winnow
