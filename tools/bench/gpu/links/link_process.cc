#include "tools/bench/gpu/links/link_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/plugin/plugin.h"

namespace winnow {
namespace {

void WriteAll(int descriptor, const void* data, size_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written = write(descriptor, at, bytes);
    WINNOW_CHECK(written > 0);
    at += written;
    bytes -= written;
  }
}

void ReadAll(int descriptor, void* data, size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = read(descriptor, at, bytes);
    if (got <= 0) {
      std::fprintf(stderr, "the other process is gone\n");
      std::exit(1);
    }
    at += got;
    bytes -= got;
  }
}

}  // namespace

std::string LinkSocket::Exchange(std::string_view mine) {
  const uint64_t size = mine.size();
  std::thread writer([&] {  // both sides may have more to say than the socket holds
    WriteAll(descriptor_, &size, sizeof(size));
    WriteAll(descriptor_, mine.data(), mine.size());
  });
  uint64_t peer_size = 0;
  ReadAll(descriptor_, &peer_size, sizeof(peer_size));
  std::string peers(peer_size, '\0');
  ReadAll(descriptor_, peers.data(), peers.size());
  writer.join();
  return peers;
}

LinkProcess ForkSender() {
  int ends[2];
  WINNOW_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  signal(SIGPIPE, SIG_IGN);
  const pid_t child = fork();
  WINNOW_CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    return {LinkRole::kSender, 0, LinkSocket(ends[1])};
  }
  close(ends[1]);
  return {LinkRole::kReceiver, child, LinkSocket(ends[0])};
}

absl::StatusOr<LinkEnds> OpenLink(LinkProcess& process, const std::vector<size_t>& region_bytes, bool watch_socket) {
  LinkEnds ends;
  WINNOW_ASSIGN_OR_RETURN(ends.table, device::LoadPlugin());
  ends.one_gpu = ends.table->device_count() == 1;
  const int ordinal = process.role == LinkRole::kSender && !ends.one_gpu ? 1 : 0;
  WINNOW_ASSIGN_OR_RETURN(ends.device, ends.table->open_device(ordinal));
  const device::Stream stream = ends.device->NewStream();
  std::vector<const device::DeviceMemory*> exposed;
  for (const size_t bytes : region_bytes) {
    WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<device::DeviceMemory> memory, ends.device->Allocate(bytes));
    ends.device->FillAsync(memory->data(), 0, bytes, stream);
    exposed.push_back(memory.get());
    ends.exposed.push_back(std::move(memory));
  }
  WINNOW_RETURN_IF_ERROR(ends.device->Synchronize(stream));
  WINNOW_ASSIGN_OR_RETURN(ends.link, device::PeerLink::Create(*ends.device, exposed));
  const std::string peer = process.socket.Exchange(ends.link->LocalAddress());
  WINNOW_RETURN_IF_ERROR(ends.link->Connect(
      peer, {.liveness_socket = watch_socket ? process.socket.descriptor() : -1, .allow_same_gpu = ends.one_gpu}));
  process.socket.Barrier();
  return ends;
}

}  // namespace winnow
