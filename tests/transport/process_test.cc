#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/transport/links.h"

// Peers in processes of their own, which die at the worst moments.

namespace winnow {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class PeerProcess {
 public:
  PeerProcess(const TransportUnderTest& kind, const std::string& mode) {
    int ends[2];
    WINNOW_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    const std::string fd = std::to_string(ends[1]);
    pid_ = fork();
    WINNOW_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      const char* elsewhere = std::getenv("TRANSPORT_TEST_PEER");  // where the build tree is not
      const char* program = elsewhere != nullptr ? elsewhere : TRANSPORT_TEST_PEER;
      execl(program, program, kind.name.c_str(), mode.c_str(), fd.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    socket_ = ends[0];
    uint64_t size = 0;
    WINNOW_CHECK(recv(socket_, &size, sizeof(size), MSG_WAITALL) == sizeof(size));
    address_.resize(size);
    WINNOW_CHECK(recv(socket_, address_.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size));
  }
  ~PeerProcess() {
    Kill();
    close(socket_);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void Connect(Channel& channel) {
    const std::string own = channel.LocalAddress();
    const uint64_t size = own.size();
    WINNOW_CHECK(write(socket_, &size, sizeof(size)) == sizeof(size));
    WINNOW_CHECK(write(socket_, own.data(), size) == static_cast<ssize_t>(size));
    EXPECT_EQ(channel.Connect(address_), absl::OkStatus());
  }
  void Signal() const {
    if (pid_ > 0) kill(pid_, SIGKILL);
  }
  void Kill() {
    if (pid_ <= 0) return;
    Signal();
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  int socket_ = -1;
  std::string address_;
};

// What a socket's end is, so that a failure tells whose it is.
std::string DescribeSocket(int fd) {
  const auto name = [](const sockaddr_storage& address, socklen_t bytes) -> std::string {
    char host[INET6_ADDRSTRLEN] = "";
    if (address.ss_family == AF_INET) {
      const auto& in = reinterpret_cast<const sockaddr_in&>(address);
      return absl::StrCat(inet_ntop(AF_INET, &in.sin_addr, host, sizeof(host)), ":", ntohs(in.sin_port));
    }
    if (address.ss_family == AF_INET6) {
      const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
      return absl::StrCat(inet_ntop(AF_INET6, &in.sin6_addr, host, sizeof(host)), " ", ntohs(in.sin6_port));
    }
    if (address.ss_family != AF_UNIX) return absl::StrCat("family ", address.ss_family);
    std::string path(reinterpret_cast<const sockaddr_un&>(address).sun_path,
                     bytes > offsetof(sockaddr_un, sun_path) ? bytes - offsetof(sockaddr_un, sun_path) : 0);
    std::replace(path.begin(), path.end(), '\0', '@');
    return "unix " + path;
  };
  std::string text;
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0) text = name(address, bytes);
  address = {};
  bytes = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0) text += " to " + name(address, bytes);
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) text += ", listens";
  return text;
}

// Number and what it is.
std::map<int, std::string> OpenFds() {
  std::map<int, std::string> fds;
  DIR* dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) {
    const int fd = std::atoi(entry->d_name);
    char target[256] = "";
    if (entry->d_name[0] == '.' || fd == dirfd(dir)) continue;
    if (readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof(target) - 1) < 0) continue;
    fds[fd] = target;
    if (fds[fd].starts_with("socket:")) fds[fd] += " " + DescribeSocket(fd);
  }
  closedir(dir);
  return fds;
}

// Those of `now` that were not there.
std::string NewFds(const std::map<int, std::string>& before, const std::map<int, std::string>& now) {
  std::string text;
  for (const auto& [fd, what] : now) {
    const auto found = before.find(fd);
    if (found == before.end() || found->second != what) absl::StrAppend(&text, "\n  ", fd, ": ", what);
  }
  return text;
}

class ProcessTest : public ::testing::TestWithParam<TransportUnderTest> {};
INSTANTIATE_TEST_SUITE_P(All, ProcessTest, ::testing::ValuesIn(KindsBetweenProcesses()), KindName);

TEST_P(ProcessTest, FramesCrossProcesses) {
  PeerProcess peer(GetParam(), "echo");
  End end(GetParam(), {.incarnation = 1});
  peer.Connect(*end.channel);
  AwaitPath(GetParam(), {end.transport.get()}, {end.channel.get()});
  for (uint32_t i = 0; i < 30; ++i) ASSERT_EQ(PostBytes(*end.channel, 9001 * i, i), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({end.transport.get()}, [&] { return end.frames.size() == 30; }));
  for (uint32_t i = 0; i < 30; ++i) EXPECT_TRUE(HoldsBytes(end.frames[i], 9001 * i, i));
}

// What a death costs: nothing but its own channel, however often it happens.
void KillWhile(const TransportUnderTest& kind, const std::string& mode) {
  End end(kind, {.incarnation = 1});
  PeerProcess survivor(kind, "echo");
  survivor.Connect(*end.channel);
  AwaitPath(kind, {end.transport.get()}, {end.channel.get()});
  uint32_t echoed = 0, flooded = 0;
  end.transport->SetHandler([&](Channel& from, ReceivedFrame frame) {
    if (&from != end.channel.get()) {
      ++flooded;
      return;
    }
    EXPECT_TRUE(HoldsBytes(frame, 30'000, echoed));
    ++echoed;
  });

  std::map<int, std::string> fds;
  for (uint32_t round = 0; round < 8; ++round) {
    PeerProcess victim(kind, mode);
    std::unique_ptr<Channel> channel = end.transport->NewChannel().value();
    victim.Connect(*channel);
    AwaitPath(kind, {end.transport.get()}, {channel.get()});
    // Frames under way in both directions when the peer dies.
    uint32_t posted = 0;
    while (posted < 12 && PostBytes(*channel, 1 << 20, posted).ok()) ++posted;
    if (mode == "flood") {
      ASSERT_TRUE(PumpUntil({end.transport.get()}, [&] { return flooded > 10 * round; }));
    } else {
      for (int i = 0; i < 100; ++i) end.transport->Progress();
    }
    victim.Kill();

    // The other channel goes on beside the dead one ...
    const auto echo = [&] {
      const uint32_t before = echoed;
      const absl::Status posted_echo = PostBytes(*end.channel, 30'000, echoed);
      ASSERT_EQ(posted_echo, absl::OkStatus());
      ASSERT_TRUE(PumpUntil({end.transport.get()}, [&] { return echoed == before + 1; }));
    };
    for (int i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(echo());
    // ... and Close needs nobody's help.
    const auto start = steady_clock::now();
    channel->Close();
    channel.reset();
    EXPECT_LT(steady_clock::now() - start, seconds(5));
    for (int i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(echo());
    // What a library lets go of behind a path's end may take half a second.
    if (round == 0) {
      std::this_thread::sleep_for(seconds(1));
      fds = OpenFds();
    }
    const auto patience = steady_clock::now() + seconds(1);
    while (OpenFds().size() > fds.size() && steady_clock::now() < patience) {
      end.transport->Wait(std::chrono::milliseconds(1), std::chrono::microseconds(0));
    }
    const std::map<int, std::string> now = OpenFds();
    EXPECT_LE(now.size(), fds.size()) << "round " << round << NewFds(fds, now);
  }
}

TEST_P(ProcessTest, PeerKilledWhileItSends) {
  KillWhile(GetParam(), "flood");
}
TEST_P(ProcessTest, PeerKilledWithoutEverReading) {
  KillWhile(GetParam(), "silent");
}

TEST_P(ProcessTest, TransportDiesWithADeadPeerStillConnected) {
  End end(GetParam(), {.incarnation = 1});
  PeerProcess peer(GetParam(), "flood");
  peer.Connect(*end.channel);
  for (uint32_t i = 0; i < 16; ++i) ASSERT_EQ(PostBytes(*end.channel, 1 << 20, i), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({end.transport.get()}, [&] { return end.frames.size() > 5; }));
  peer.Kill();
}

// Kinds that report a dead peer themselves; UCX over shared memory does not.
class DeathTest : public ::testing::TestWithParam<TransportUnderTest> {};
INSTANTIATE_TEST_SUITE_P(All, DeathTest, ::testing::ValuesIn([] {
                           std::vector<TransportUnderTest> kinds = KindsBetweenProcesses();
                           std::erase_if(kinds, [](const TransportUnderTest& kind) { return !kind.notices_death; });
                           return kinds;
                         }()),
                         KindName);

TEST_P(DeathTest, IsReportedWithFramesUnderWay) {
  const TransportUnderTest& kind = GetParam();
  auto end = std::make_unique<End>(kind, TransportOptions{.incarnation = 1});
  PeerProcess peer(kind, "echo");
  peer.Connect(*end->channel);
  ASSERT_EQ(PostBytes(*end->channel, 10, 0), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({end->transport.get()}, [&] { return end->frames.size() == 1; }));
  AwaitPath(kind, {end->transport.get()}, {end->channel.get()});
  for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(PostBytes(*end->channel, 1 << 20, i), absl::OkStatus());
  const auto killed = steady_clock::now();
  const auto milliseconds = [&] {
    return std::chrono::duration<double, std::milli>(steady_clock::now() - killed).count();
  };
  peer.Signal();
  double gone_ms = 0;
  std::thread waits([&] {
    peer.Kill();
    gone_ms = milliseconds();
  });
  EXPECT_TRUE(PumpUntil({end->transport.get()}, [&] { return !end->channel->failed().ok(); }));
  EXPECT_TRUE(absl::IsUnavailable(end->channel->failed())) << end->channel->failed();
  const double seen_ms = milliseconds();
  end->channel.reset();
  const double freed_ms = milliseconds();
  end.reset();
  const double all_ms = milliseconds();
  waits.join();
  // Read by the section transport of winnow-gpu-check.
  std::printf(
      "[ death    ] seen after %.1f ms, freed after %.1f ms, all after %.1f ms, process gone after %.1f ms: %s\n",
      seen_ms, freed_ms, all_ms, gone_ms, kind.name.c_str());
}

}  // namespace
}  // namespace winnow
