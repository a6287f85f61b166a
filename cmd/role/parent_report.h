#pragma once
#include <string>
#include <string_view>

namespace winnow {

// How a role process tells `winnow up`, which started it, where it listens and that it is ready: lines on a pipe,
// "grpc=127.0.0.1:8001" and at last "ready". Without a parent (descriptor -1) nothing is written.
class ParentReport {
 public:
  // Owns `fd`.
  explicit ParentReport(int fd) : fd_(fd) {}
  ~ParentReport();
  ParentReport(const ParentReport&) = delete;
  ParentReport& operator=(const ParentReport&) = delete;

  void Address(std::string_view key, std::string_view address) { Line(std::string(key) + "=" + std::string(address)); }
  void Ready() { Line("ready"); }
  // Nothing that this process has begun needs its siblings any more: they may be stopped.
  void Drained() { Line("drained"); }

 private:
  void Line(const std::string& line);
  const int fd_;
};

}  // namespace winnow
