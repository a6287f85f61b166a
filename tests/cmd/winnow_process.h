#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace winnow {

// The winnow binary, run by a test. It ends with the test program, however that ends.
class WinnowProcess {
 public:
  struct Setting {
    std::string input;                     // what is on its stdin
    std::vector<std::string> environment;  // "NAME=value", beside that of the test
  };
  // Starts `winnow` with these arguments, and nothing on its stdin.
  explicit WinnowProcess(const std::vector<std::string>& arguments) : WinnowProcess(arguments, Setting()) {}
  WinnowProcess(const std::vector<std::string>& arguments, const Setting& setting);
  ~WinnowProcess();  // kills it
  WinnowProcess(const WinnowProcess&) = delete;
  WinnowProcess& operator=(const WinnowProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The next line of its stdout, without the line feed; empty at the end of the output.
  std::string ReadLine();
  void Signal(int signal_number);
  // Its exit code, or 128 + the signal that killed it. Reads the rest of the output.
  int Wait();

  // What it wrote, as far as it has been read; complete after Wait.
  const std::string& output() const { return output_; }
  std::string errors();

 private:
  pid_t pid_ = -1;
  int output_fd_ = -1;
  int errors_fd_ = -1;  // a file in memory
  std::string output_;
  size_t read_ = 0;
};

// Ids of the processes whose parent is `parent`, with the command line of each.
struct ProcessInfo {
  pid_t pid;
  std::string command;
};
std::vector<ProcessInfo> ChildrenOf(pid_t parent);

}  // namespace winnow
