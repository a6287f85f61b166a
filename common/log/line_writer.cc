#include "common/log/line_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace winnow {

void LineWriter::Write(std::string_view lines) {
  if (lines.empty()) return;
  if (lost_bytes_ > 0) {
    const std::string notice = absl::StrCat(amid_a_line_ ? "\n" : "", "winnow: ", lost_bytes_,
                                            " bytes of the log are missing here: ", strerror(error_), "\n");
    if (WriteSome(notice) < notice.size()) {
      lost_bytes_ += lines.size();
      return;
    }
    lost_bytes_ = 0;
  }
  lost_bytes_ = lines.size() - WriteSome(lines);
}

size_t LineWriter::WriteSome(std::string_view bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = write(fd_, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error_ = n < 0 ? errno : EIO;
      break;
    }
    written += static_cast<size_t>(n);
  }
  if (written > 0) amid_a_line_ = bytes[written - 1] != '\n';
  return written;
}

}  // namespace winnow
