#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/plugin/plugin.h"
#include "transport/nccl/nccl_path.h"
#include "transport/peer/p2p_path.h"
#include "transport/seal/frame_seal.h"
#include "transport/transport.h"
#include "transport/wire/crc32c.h"

// Latency and bandwidth of the transports between two cores of this machine: two processes for UCX, two threads for
// inproc. p2p and nccl with a GPU each where there are two.
//   transport_bench [seconds per measurement = 0.5] [only transports whose name contains this]
// Latency: half a round trip of a frame with 64 bytes. Bandwidth: frames one way as fast as the window returns,
// received frames dropped at once; both sides compute the checksum, or seal and open, the payload is not rewritten
// between frames. Seals by transport/seal/protection.h: 1 headers, 2 authenticated, 3 encrypted; p50 is a frame without
// payload on one core.

namespace {

using namespace winnow;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kEcho = 1, kStream = 2, kStreamEnd = 3, kQuit = 4;  // FrameHeader::flags
constexpr size_t kLatencyBytes = 64;
constexpr auto kForever = std::chrono::microseconds(1'000'000);

double g_seconds = 0.5;

void PinTo(int index) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && index-- == 0) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      sched_setaffinity(0, sizeof(one), &one);
      return;
    }
  }
}

struct Setup {
  const char* name;
  const char* tls;        // null: inproc
  const char* path = "";  // payload path
  DataPlaneMode mode = DataPlaneMode::kPlain;
};

// Of one of the two processes, 0 or 1: a GPU each where there are two.
PayloadPathKind PathOf(const Setup& setup, int side) {
  const absl::StatusOr<const device::DeviceTable*> table = device::LoadPlugin();
  const int ordinal = table.ok() ? side % (*table)->device_count() : 0;
  if (std::string_view(setup.path) == "nccl") return NcclPaths(**table, {.ordinal = ordinal, .smallest_bytes = 4096});
  return P2pPaths(table.ok() ? (*table)->open_device(ordinal).value().release() : nullptr);  // to the process's end
}

struct End {
  End(const Setup& setup, int side, std::chrono::microseconds spin_time) : spin(spin_time) {
    TransportOptions options;
    options.incarnation = 1;
    options.data_plane_mode = setup.mode;
    options.keys_are_secret = true;
    if (setup.tls == nullptr) {
      transport = NewInprocTransport(options);
    } else {
      options.ucx_tls = setup.tls;
      if (*setup.path != '\0') {
        options.payload_paths = {PathOf(setup, side)};
        options.on_payload_path = [&setup](std::string_view, const absl::Status& why_none) {
          if (!why_none.ok()) std::fprintf(stderr, "no %s: %s\n", setup.path, why_none.ToString().c_str());
        };
      }
      auto made = NewUcxTransport(options);
      if (!made.ok()) std::fprintf(stderr, "%s: %s\n", setup.name, made.status().ToString().c_str());
      WINNOW_CHECK(made.ok());
      transport = *std::move(made);
    }
    channel = transport->NewChannel().value();
  }
  void Send(uint32_t what, size_t bytes) {
    for (;;) {
      auto buffer = channel->Allocate(bytes);
      if (buffer.ok()) {
        wire::FrameHeader header{};
        header.type = wire::FrameType::kLayer;
        header.flags = what;
        WINNOW_CHECK(channel->Post(header, *std::move(buffer)).ok());
        return;
      }
      WINNOW_CHECK(absl::IsResourceExhausted(buffer.status()));
      transport->Wait(kForever, spin);
    }
  }

  const std::chrono::microseconds spin;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Channel> channel;
};

// Echoes, swallows streams and confirms their end, until told to quit.
void Serve(End& end) {
  bool quit = false;
  end.transport->SetHandler([&](Channel&, ReceivedFrame frame) {
    const uint32_t what = frame.header().flags;
    if (what == kEcho || what == kStreamEnd) end.Send(kEcho, what == kEcho ? frame.payload().size() : 0);
    quit |= what == kQuit;
  });
  while (!quit) end.transport->Wait(kForever, end.spin);
}

struct Result {
  double p50_us, p99_us, gb_per_s_64k, gb_per_s_1m;
};

Result Measure(End& end) {
  size_t received = 0;
  end.transport->SetHandler([&](Channel&, ReceivedFrame) { ++received; });
  const auto round_trip = [&](uint32_t what, size_t bytes) {
    const size_t before = received;
    end.Send(what, bytes);
    while (received == before) end.transport->Wait(kForever, end.spin);
  };
  const auto stream = [&](size_t bytes) {
    for (int i = 0; i < 16; ++i) end.Send(kStream, bytes);
    round_trip(kStreamEnd, 0);
    const auto start = Clock::now();
    size_t sent = 0;
    do {
      for (int i = 0; i < 16; ++i) end.Send(kStream, bytes);
      sent += 16 * bytes;
    } while (std::chrono::duration<double>(Clock::now() - start).count() < g_seconds);
    round_trip(kStreamEnd, 0);
    return static_cast<double>(sent) / std::chrono::duration<double>(Clock::now() - start).count() / 1e9;
  };

  for (int i = 0; i < 2000; ++i) round_trip(kEcho, kLatencyBytes);
  std::vector<double> halves_us;
  const auto start = Clock::now();
  for (auto now = start; std::chrono::duration<double>(now - start).count() < g_seconds;) {
    round_trip(kEcho, kLatencyBytes);
    const auto after = Clock::now();
    halves_us.push_back(std::chrono::duration<double, std::micro>(after - now).count() / 2);
    now = after;
  }
  std::sort(halves_us.begin(), halves_us.end());
  Result result{};
  result.p50_us = halves_us[halves_us.size() / 2];
  result.p99_us = halves_us[halves_us.size() * 99 / 100];
  result.gb_per_s_64k = stream(64 << 10);
  result.gb_per_s_1m = stream(1 << 20);
  end.Send(kQuit, 0);
  for (int i = 0; i < 1000; ++i) end.transport->Progress();
  return result;
}

// The two sides swap their addresses through a socket, and side 1 says how frames are protected.
void Exchange(int socket, End& end, int side) {
  const std::string own = end.channel->LocalAddress();
  char peer[4096];
  WINNOW_CHECK(send(socket, own.data(), own.size(), 0) == static_cast<ssize_t>(own.size()));
  const ssize_t size = recv(socket, peer, sizeof(peer), 0);
  WINNOW_CHECK(size > 0);
  WINNOW_CHECK(end.channel->Connect({peer, static_cast<size_t>(size)}).ok());
  if (side == 1) {
    const LinkProtection decided = end.channel->DecideProtection(DataPlaneMode::kAuto).value();
    const std::string answer = std::string(1, static_cast<char>(decided.level)) + decided.key.bytes();
    WINNOW_CHECK(send(socket, answer.data(), answer.size(), 0) == static_cast<ssize_t>(answer.size()));
    return;
  }
  char answer[1 + SessionKey::kBytes];
  WINNOW_CHECK(recv(socket, answer, sizeof(answer), 0) == sizeof(answer));
  const LinkProtection decided{.level = static_cast<Protection>(answer[0]),
                               .key = SessionKey::FromBytes({answer + 1, SessionKey::kBytes}).value()};
  WINNOW_CHECK(end.channel->TakeProtection(decided).ok());
}

// False where the path does not come up.
bool AwaitPath(const Setup& setup, End& end) {
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  while (end.channel->payload_path() != setup.path) {
    if (Clock::now() > give_up) return false;
    end.transport->Wait(std::chrono::microseconds(1000), std::chrono::microseconds(0));
  }
  return true;
}

void Report(const Setup& setup, const char* mode, const Result& result) {
  std::printf("%-12s %-6s %10.2f %10.2f %12.2f %12.2f\n", setup.name, mode, result.p50_us, result.p99_us,
              result.gb_per_s_64k, result.gb_per_s_1m);
  std::fflush(stdout);
}

void Run(const Setup& setup, const char* mode, std::chrono::microseconds spin) {
  int sockets[2];
  WINNOW_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  const auto measure = [&] {
    PinTo(0);
    End end(setup, 0, spin);
    Exchange(sockets[0], end, 0);
    if (AwaitPath(setup, end)) {
      Report(setup, mode, Measure(end));
    } else {
      end.Send(kQuit, 0);
    }
    char done = 0;
    (void)!recv(sockets[0], &done, 1, 0);  // the server has read everything
  };
  const auto serve = [&] {
    PinTo(1);
    End end(setup, 1, spin);
    Exchange(sockets[1], end, 1);
    Serve(end);
    (void)!send(sockets[1], "", 1, 0);
  };
  if (setup.tls == nullptr) {
    std::thread server(serve);
    std::thread(measure).join();
    server.join();
  } else {
    // Both in children: UCX does not survive a fork.
    const pid_t server = fork();
    if (server == 0) {
      serve();
      _exit(0);
    }
    const pid_t measurer = fork();
    if (measurer == 0) {
      measure();
      _exit(0);
    }
    waitpid(measurer, nullptr, 0);
    waitpid(server, nullptr, 0);
  }
  close(sockets[0]);
  close(sockets[1]);
}

// A peer that takes nothing in is killed with frames under way: when that is seen, and when all is let go.
void RunKill(const Setup& setup) {
  int sockets[2];
  WINNOW_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  const auto spin = std::chrono::microseconds(0);
  const pid_t victim = fork();
  if (victim == 0) {
    End end(setup, 1, spin);
    Exchange(sockets[1], end, 1);
    AwaitPath(setup, end);
    (void)!send(sockets[1], "", 1, 0);
    while (true) pause();
  }
  const pid_t measurer = fork();
  if (measurer == 0) {
    auto end = std::make_unique<End>(setup, 0, spin);
    Exchange(sockets[0], *end, 0);
    AwaitPath(setup, *end);
    char ready = 0;
    (void)!recv(sockets[0], &ready, 1, 0);
    for (int i = 0; i < 12; ++i) end->Send(kStream, 1 << 20);
    const auto milliseconds_since = [](Clock::time_point start) {
      return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    };
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto killed = Clock::now();
    kill(victim, SIGKILL);
    while (end->channel->failed().ok() && milliseconds_since(killed) < 10'000) {
      end->transport->Wait(kForever, spin);
    }
    const double seen_ms = milliseconds_since(killed);
    const absl::Status why = end->channel->failed();
    end.reset();
    std::printf("%-12s peer killed: seen after %.1f ms, all let go after %.1f ms: %s\n", setup.name, seen_ms,
                milliseconds_since(killed), why.ToString().c_str());
    std::fflush(stdout);
    _exit(0);
  }
  waitpid(measurer, nullptr, 0);
  kill(victim, SIGKILL);
  waitpid(victim, nullptr, 0);
  close(sockets[0]);
  close(sockets[1]);
}

double GbPerSecond(size_t bytes, const std::function<void()>& pass) {
  size_t passes = 0;
  const auto start = Clock::now();
  double seconds = 0;
  while ((seconds = std::chrono::duration<double>(Clock::now() - start).count()) < g_seconds) {
    pass();
    ++passes;
  }
  return static_cast<double>(passes * bytes) / seconds / 1e9;
}

// What one core can do alone, as a yardstick: 16 buffers in turn, as a window of frames has.
void ReportCore() {
  double copy[2], checksum[2];
  const size_t sizes[2] = {64 << 10, 1 << 20};
  for (int i = 0; i < 2; ++i) {
    const size_t bytes = sizes[i];
    std::vector<std::byte> from(16 * bytes, std::byte{1}), to(16 * bytes);
    size_t turn = 0;
    copy[i] = GbPerSecond(bytes, [&] {
      std::memcpy(&to[turn % 16 * bytes], &from[turn % 16 * bytes], bytes);
      asm volatile("" : : "r"(to.data()) : "memory");
      ++turn;
    });
    uint32_t sum = 0;
    checksum[i] = GbPerSecond(bytes, [&] { sum ^= Crc32c(std::span(from).subspan(turn++ % 16 * bytes, bytes)); });
    asm volatile("" : : "r"(sum));
  }
  std::printf("%-12s %-6s %10s %10s %12.2f %12.2f\n", "memcpy", "", "", "", copy[0], copy[1]);
  std::printf("%-12s %-6s %10s %10s %12.2f %12.2f\n", "crc32c", "", "", "", checksum[0], checksum[1]);
  for (const Protection level : {Protection::kHeaders, Protection::kAuthenticated, Protection::kEncrypted}) {
    const auto seal =
        FrameSeal::Create({.level = level, .key = SessionKey::Make().value()}, FrameSeal::End::kCaller).value();
    wire::FrameHeader header{};
    double rate[2];
    for (int i = 0; i < 2; ++i) {
      std::vector<std::byte> payloads(16 * sizes[i], std::byte{1});
      rate[i] = GbPerSecond(sizes[i], [&] {
        seal->Seal(header, std::span(payloads).subspan(header.frame_number++ % 16 * sizes[i], sizes[i]));
      });
    }
    constexpr size_t kFrames = 1000;
    const double frames_per_us = GbPerSecond(kFrames,
                                             [&] {
                                               for (size_t i = 0; i < kFrames; ++i, ++header.frame_number)
                                                 seal->Seal(header, {});
                                             }) *
                                 1e3;
    std::printf("%-12s %-6s %10.2f %10s %12.2f %12.2f\n", absl::StrCat("seal ", static_cast<int>(level)).c_str(), "",
                1 / frames_per_us, "", rate[0], rate[1]);
  }
}

// Asked in a process of its own: what CUDA sets up does not survive a fork.
int NumGpus() {
  const pid_t asker = fork();
  if (asker == 0) {
    const absl::StatusOr<const device::DeviceTable*> table = device::LoadPlugin();
    _exit(table.ok() ? (*table)->device_count() : 0);
  }
  int status = 0;
  waitpid(asker, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) g_seconds = std::stod(argv[1]);
  const std::string only = argc > 2 ? argv[2] : "";
  const int gpus = NumGpus();
  std::printf("%-12s %-6s %10s %10s %12s %12s\n", "transport", "wait", "p50 us", "p99 us", "64 KiB GB/s", "1 MiB GB/s");
  for (const Setup& setup :
       {Setup{"inproc", nullptr}, Setup{"ucx posix", "posix,self"}, Setup{"ucx sysv", "sysv,self"},
        Setup{"ucx tcp", "tcp,self"}, Setup{"tcp headers", "tcp,self", "", DataPlaneMode::kAuto},
        Setup{"tcp authent.", "tcp,self", "", DataPlaneMode::kAuthenticated},
        Setup{"tcp encrypt.", "tcp,self", "", DataPlaneMode::kEncrypted}, Setup{"p2p", "posix,self", "p2p"},
        Setup{"p2p headers", "posix,self", "p2p", DataPlaneMode::kAuto}, Setup{"nccl", "posix,self", "nccl"}}) {
    if (std::string_view(setup.name).find(only) == std::string_view::npos) continue;
    if (std::string_view(setup.path) == "nccl" && gpus < 2) continue;
    Run(setup, "spin", kForever);
    Run(setup, "sleep", std::chrono::microseconds(0));
    if (*setup.path != '\0') RunKill(setup);
  }
  ReportCore();
  return 0;
}
