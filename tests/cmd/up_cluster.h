#pragma once
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cmd/up/http_probe.h"
#include "tests/cmd/winnow_process.h"

namespace winnow {

inline std::vector<std::string> UpArguments(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {
      "up",           "--model=deploy/models/demo", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0",
      "--budget=256", "--cache-memory=512MiB"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A cluster from its ready line to its end.
class UpCluster {
 public:
  explicit UpCluster(std::vector<std::string> more = {}) : process_(UpArguments(std::move(more))) {
    line_ = process_.ReadLine();
    std::istringstream words(line_);
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      if (equals != std::string::npos) addresses_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  bool ready() const { return line_.rfind("ready http=", 0) == 0; }
  const std::string& line() const { return line_; }
  std::string address(const std::string& key) const { return addresses_.at(key); }
  WinnowProcess& process() { return process_; }

  pid_t Child(const std::string& role) {
    for (const ProcessInfo& child : ChildrenOf(process_.pid())) {
      if (child.command.find(" " + role + " ") != std::string::npos) return child.pid;
    }
    return -1;
  }

  // Exit code of the demo's one question: 0 when the answer is right.
  int Ask() {
    WinnowProcess demo({"demo", "--once", "--server=" + address("grpc")});
    const int code = demo.Wait();
    answer_ = demo.output() + demo.errors();
    return code;
  }
  const std::string& answer() const { return answer_; }

  bool RouterIsReady() const {
    const auto answer = HttpGet(address("http"), "/ready", std::chrono::seconds(5));
    return answer.ok() && answer->status == 200;
  }

 private:
  WinnowProcess process_;
  std::string line_;
  std::map<std::string, std::string> addresses_;
  std::string answer_;
};

}  // namespace winnow
