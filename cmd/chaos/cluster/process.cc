#include "cmd/chaos/cluster/process.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace winnow::chaos {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The numbers that name the entries of a folder of /proc.
std::vector<pid_t> NumbersIn(const std::string& folder) {
  std::vector<pid_t> numbers;
  DIR* const directory = opendir(folder.c_str());
  if (directory == nullptr) return numbers;
  while (const dirent* entry = readdir(directory)) {
    const int number = std::atoi(entry->d_name);
    if (number > 0 || std::strcmp(entry->d_name, "0") == 0) numbers.push_back(number);
  }
  closedir(directory);
  return numbers;
}

double RunDelay(pid_t pid) {
  double seconds = 0;
  for (const pid_t task : NumbersIn(absl::StrCat("/proc/", pid, "/task"))) {
    double on_cpu_ns = 0, waiting_ns = 0;
    std::istringstream(ReadText(absl::StrCat("/proc/", pid, "/task/", task, "/schedstat"))) >> on_cpu_ns >> waiting_ns;
    seconds += waiting_ns / 1e9;
  }
  return seconds;
}

bool IsOfThisHost(const in_addr_t address) {
  if ((ntohl(address) >> 24) == 127) return true;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    found |= reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr == address;
  }
  freeifaddrs(all);
  return found;
}

std::optional<in_addr_t> Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  const in_addr_t address = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr;
  freeaddrinfo(found);
  return address;
}

// Inodes of the sockets that listen at the address, or at all with that port, on the host of which `folder`, such as
// /proc/PID/net, tells.
std::set<std::string> ListeningSockets(const std::string& folder, in_addr_t wanted, uint16_t port) {
  std::set<std::string> inodes;
  for (const char* table : {"/tcp", "/tcp6"}) {
    const bool is_v6 = std::strcmp(table, "/tcp6") == 0;
    std::istringstream lines(ReadText(folder + table));
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, skipped, inode;
      words >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      const size_t colon = local.find(':');
      if (state != "0A" || colon == std::string::npos) continue;
      if (std::stoul(local.substr(colon + 1), nullptr, 16) != port) continue;
      const std::string host = local.substr(0, colon);
      const bool is_any = host.find_first_not_of('0') == std::string::npos;
      if (is_any || (!is_v6 && std::stoul(host, nullptr, 16) == wanted)) inodes.insert("socket:[" + inode + "]");
    }
  }
  return inodes;
}

bool HasSocket(pid_t pid, const std::set<std::string>& sockets) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd/");
  for (const pid_t fd : NumbersIn(folder)) {
    char target[128];
    const ssize_t length = readlink(absl::StrCat(folder, fd).c_str(), target, sizeof target);
    if (length > 0 && sockets.contains(std::string(target, static_cast<size_t>(length)))) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<ProcessFigures> ReadProcess(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid);
  const std::string stat = ReadText(folder + "/stat");
  // "pid (name) state parent ..."; the name may hold anything.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  const std::vector<std::string> fields = [&] {
    std::istringstream words(stat.substr(name_end + 1));
    return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
  }();
  if (fields.size() < 22) return absl::InternalError(absl::StrCat("cannot read ", folder, "/stat"));
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcessFigures figures;
  figures.state = fields[0][0];
  figures.parent = std::atoi(fields[1].c_str());
  figures.cpu_s = (std::stod(fields[11]) + std::stod(fields[12])) / ticks;
  figures.threads = std::stoll(fields[17]);
  figures.start_s = std::stod(fields[19]) / ticks;
  figures.vm_bytes = std::stoll(fields[20]);
  figures.rss_bytes = std::stoll(fields[21]) * sysconf(_SC_PAGESIZE);
  figures.descriptors = static_cast<int64_t>(NumbersIn(folder + "/fd").size());
  figures.run_delay_s = RunDelay(pid);
  return figures;
}

absl::StatusOr<Process> Process::Open(pid_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return absl::NotFoundError(absl::StrCat("cannot hold process ", pid, ": ", strerror(errno)));
  Process process(pid, 0, fd);
  // Read while the descriptor is held: if it has not ended by now, this was it.
  WINNOW_ASSIGN_OR_RETURN(const ProcessFigures figures, ReadProcess(pid));
  if (process.has_ended()) return absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
  process.start_s_ = figures.start_s;
  return process;
}

absl::Status Process::Signal(int number) const {
  if (syscall(SYS_pidfd_send_signal, fd_->get(), number, nullptr, 0) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot signal process ", pid_, ": ", strerror(errno)));
}

bool Process::AwaitEnd(std::chrono::milliseconds limit) const {
  pollfd entry{fd_->get(), POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(limit.count())) > 0;
}

absl::StatusOr<ProcessFigures> Process::Figures() const {
  WINNOW_ASSIGN_OR_RETURN(const ProcessFigures figures, ReadProcess(pid_));
  if (has_ended()) return absl::NotFoundError(absl::StrCat("process ", pid_, " has ended"));
  return figures;
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  for (const pid_t task : NumbersIn(absl::StrCat("/proc/", parent, "/task"))) {
    std::istringstream words(ReadText(absl::StrCat("/proc/", parent, "/task/", task, "/children")));
    children.insert(children.end(), std::istream_iterator<pid_t>(words), {});
  }
  return children;
}

std::vector<std::string> CommandLineOf(pid_t pid) {
  std::vector<std::string> arguments;
  std::istringstream text(ReadText(absl::StrCat("/proc/", pid, "/cmdline")));
  for (std::string argument; std::getline(text, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

double UnixTimeOf(double start_s) {
  std::istringstream words(ReadText("/proc/stat"));
  for (std::string word; words >> word;) {
    if (word != "btime") continue;
    double boot_s = 0;
    words >> boot_s;
    return boot_s + start_s;
  }
  return 0;
}

std::optional<pid_t> ListenerAmong(std::span<const pid_t> candidates, const HostPort& address) {
  const std::optional<in_addr_t> wanted = Resolve(address.host);
  if (!wanted) return std::nullopt;
  for (const pid_t pid : candidates) {
    const std::set<std::string> sockets = ListeningSockets(absl::StrCat("/proc/", pid, "/net"), *wanted, address.port);
    if (!sockets.empty() && HasSocket(pid, sockets)) return pid;
  }
  return std::nullopt;
}

std::optional<pid_t> ListenerOfThisHost(const HostPort& address) {
  const std::optional<in_addr_t> wanted = Resolve(address.host);
  if (!wanted || !IsOfThisHost(*wanted)) return std::nullopt;
  const std::set<std::string> sockets = ListeningSockets("/proc/self/net", *wanted, address.port);
  if (sockets.empty()) return std::nullopt;
  for (const pid_t pid : NumbersIn("/proc")) {
    if (HasSocket(pid, sockets)) return pid;
  }
  return std::nullopt;
}

}  // namespace winnow::chaos
