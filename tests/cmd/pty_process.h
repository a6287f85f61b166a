#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace winnow {

// The winnow binary with a terminal of its own, run by a test that types into it. It ends with the test program,
// however that ends.
class PtyProcess {
 public:
  explicit PtyProcess(const std::vector<std::string>& arguments);
  ~PtyProcess();  // kills it
  PtyProcess(const PtyProcess&) = delete;
  PtyProcess& operator=(const PtyProcess&) = delete;

  void Type(std::string_view keys);
  // Waits until the terminal shows `text` behind what earlier calls have found; false when it does not for a minute, or
  // the program ends.
  bool Shows(std::string_view text);
  // Its exit code, or 128 + the signal that killed it; it is killed when it shows nothing more for a minute.
  int Wait();
  // All that it has shown, with the terminal's codes.
  const std::string& shown() const { return shown_; }

 private:
  bool ReadSome();  // false at the end, or after a minute of nothing

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string shown_;
  size_t seen_ = 0;
};

}  // namespace winnow
