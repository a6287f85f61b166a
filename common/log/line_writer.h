#pragma once
#include <cstdint>
#include <string_view>

namespace winnow {

// Writes the lines of a log to a descriptor that may refuse them for a while, as a file on a full disk does. What is
// refused is lost, as nobody can be made to wait for it; a line that says how many bytes are missing takes its place
// as soon as something can be written again. One thread at a time.
class LineWriter {
 public:
  explicit LineWriter(int fd) : fd_(fd) {}

  // `lines` are whole ones, with their ends.
  void Write(std::string_view lines);

 private:
  // Returns how much has been written.
  size_t WriteSome(std::string_view bytes);

  const int fd_;
  uint64_t lost_bytes_ = 0;
  int error_ = 0;             // why they were lost
  bool amid_a_line_ = false;  // the last byte that was written ends none
};

}  // namespace winnow
