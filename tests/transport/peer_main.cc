#include <unistd.h>

#include <cstring>
#include <string>

#include "common/base/check.h"
#include "tests/transport/links.h"

// The other process of process_test: peer_main <kind> <echo|flood|silent> <socket>. Runs until it is killed or the
// socket closes.

namespace {

using namespace winnow;

void ReadAll(int fd, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = read(fd, static_cast<char*>(data) + done, bytes - done);
    if (n <= 0) _exit(0);
    done += static_cast<size_t>(n);
  }
}

}  // namespace

int main(int argc, char** argv) {
  WINNOW_CHECK(argc == 4);
  const std::string mode = argv[2];
  const int fd = std::stoi(argv[3]);
  const std::vector<TransportUnderTest>& kinds = KindsUnderTest();
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const TransportUnderTest& k) { return k.name == argv[1]; });
  WINNOW_CHECK(kind != kinds.end());
  auto transport = kind->Make({.incarnation = 2, .window_bytes = size_t{16} << 20});
  auto channel = transport->NewChannel().value();
  const std::string address = channel->LocalAddress();
  const uint64_t size = address.size();
  WINNOW_CHECK(write(fd, &size, sizeof(size)) == sizeof(size));
  WINNOW_CHECK(write(fd, address.data(), size) == static_cast<ssize_t>(size));
  uint64_t peer_size = 0;
  ReadAll(fd, &peer_size, sizeof(peer_size));
  std::string peer(peer_size, '\0');
  ReadAll(fd, peer.data(), peer.size());
  WINNOW_CHECK(channel->Connect(peer).ok());
  if (mode == "silent") {
    char byte = 0;
    ReadAll(fd, &byte, 1);
  }
  transport->SetHandler([&](Channel& from, ReceivedFrame frame) {
    if (mode != "echo") return;
    auto buffer = from.Allocate(frame.payload().size());
    if (!buffer.ok()) return;
    std::memcpy(buffer->payload().data(), frame.payload().data(), frame.payload().size());
    (void)from.Post(frame.header(), *std::move(buffer));
  });
  while (channel->failed().ok()) {
    if (mode == "flood") {
      wire::FrameHeader header{};
      header.type = wire::FrameType::kDelta;
      if (auto buffer = channel->Allocate(200'000); buffer.ok()) (void)channel->Post(header, *std::move(buffer));
      transport->Progress();
    } else {
      transport->Wait(std::chrono::milliseconds(100), std::chrono::microseconds(0));
    }
    if (getppid() == 1) return 0;
  }
  return 0;
}
