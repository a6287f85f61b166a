#include "transport/peer/peer_link.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/params/cache.h"
#include "tests/kernels/device/fake_device.h"

namespace winnow::device {
namespace {

using testing::HasSubstr;

// Another process that holds a link's other end, until it is killed.
class Peer {
 public:
  explicit Peer(const char* pci_bus_id, std::vector<size_t> region_bytes = {100, 200}) {
    int ends[2], address[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    EXPECT_EQ(pipe(address), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      FakeDevice device(pci_bus_id);
      std::vector<std::unique_ptr<DeviceMemory>> memories;
      std::vector<const DeviceMemory*> exposed;
      for (const size_t bytes : region_bytes) {
        memories.push_back(*device.Allocate(bytes));
        exposed.push_back(memories.back().get());
      }
      const auto link = *PeerLink::Create(device, exposed);
      const std::string& bytes = link->LocalAddress();
      if (write(address[1], bytes.data(), bytes.size()) < 0) _exit(1);
      while (true) pause();
    }
    close(ends[1]);
    close(address[1]);
    socket_ = ends[0];
    address_.resize(96 + 72 * region_bytes.size());
    for (size_t at = 0; at < address_.size();) {
      const ssize_t got = read(address[0], address_.data() + at, address_.size() - at);
      if (got <= 0) break;
      at += got;
    }
    close(address[0]);
  }
  ~Peer() {
    Kill();
    close(socket_);
  }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  const std::string& address() const { return address_; }
  int socket() const { return socket_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int socket_ = -1;
  std::string address_;
};

bool EndsSoon(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

class PeerLinkTest : public testing::Test {
 protected:
  FakeDevice device_{"0000:01"};
  std::unique_ptr<PeerLink> link_ = *PeerLink::Create(device_, {});
};

TEST_F(PeerLinkTest, MapsWhatThePeerExposed) {
  const Peer peer("0000:02", {100, 200, 300});
  ASSERT_EQ(link_->Connect(peer.address()), absl::OkStatus());
  ASSERT_EQ(link_->num_regions(), 3u);
  EXPECT_EQ(link_->region_bytes(2), 300u);
  EXPECT_EQ(link_->status(), absl::OkStatus());
  EXPECT_EQ(*link_->abort_word(), 0u);
}

TEST_F(PeerLinkTest, ADeadPeerSetsTheAbortWordWithoutASocket) {
  Peer peer("0000:02");
  const std::string name = "process " + std::to_string(peer.pid()) + " on GPU 0000:02";
  ASSERT_EQ(link_->Connect(peer.address()), absl::OkStatus());
  peer.Kill();
  EXPECT_TRUE(EndsSoon([&] { return std::atomic_ref(const_cast<uint32_t&>(*link_->abort_word())).load() != 0; }));
  EXPECT_TRUE(absl::IsUnavailable(link_->status())) << link_->status();
  EXPECT_THAT(std::string(link_->status().message()), HasSubstr(name + " has ended"));
}

TEST_F(PeerLinkTest, TheEndOfTheSocketIsASignOfDeath) {
  const Peer peer("0000:02");  // stays alive, and holds no end of this socket
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ASSERT_EQ(link_->Connect(peer.address(), {.liveness_socket = ends[0]}), absl::OkStatus());
  ASSERT_EQ(write(ends[1], "x", 1), 1);  // what arrives is not one
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(link_->status(), absl::OkStatus());
  close(ends[1]);
  EXPECT_TRUE(EndsSoon([&] { return absl::IsUnavailable(link_->status()); }));
  link_.reset();
  close(ends[0]);
}

TEST_F(PeerLinkTest, APeerThatHasEndedIsUnavailable) {
  Peer peer("0000:02");
  peer.Kill();
  EXPECT_TRUE(absl::IsUnavailable(link_->Connect(peer.address())));
  EXPECT_TRUE(absl::IsUnavailable(link_->status()));
}

TEST_F(PeerLinkTest, MissingPeerAccessIsAFailedPreconditionThatNamesBothGpus) {
  const Peer peer("0000:02");
  device_.import_error = absl::FailedPreconditionError("cudaErrorPeerAccessUnsupported");
  const absl::Status status = link_->Connect(peer.address());
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("GPU 0000:01 to process"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("GPU 0000:02: cudaErrorPeerAccessUnsupported"));
  EXPECT_EQ(link_->num_regions(), 0u);
}

TEST_F(PeerLinkTest, RefusesOneProcessOneGpuAndOtherHosts) {
  const absl::Status self = link_->Connect(link_->LocalAddress());
  EXPECT_TRUE(absl::IsFailedPrecondition(self));
  EXPECT_THAT(std::string(self.message()), HasSubstr("this process"));

  const Peer same_gpu("0000:01");
  const absl::Status same = link_->Connect(same_gpu.address());
  EXPECT_TRUE(absl::IsFailedPrecondition(same));
  EXPECT_THAT(std::string(same.message()), HasSubstr("same GPU"));
  EXPECT_EQ(link_->Connect(same_gpu.address(), {.allow_same_gpu = true}), absl::OkStatus());

  const auto other = *PeerLink::Create(device_, {});
  std::string elsewhere = same_gpu.address();
  elsewhere[8] ^= 1;  // the host's boot id
  const absl::Status host = other->Connect(elsewhere);
  EXPECT_TRUE(absl::IsFailedPrecondition(host));
  EXPECT_THAT(std::string(host.message()), HasSubstr("another host"));
}

TEST_F(PeerLinkTest, RefusesBytesThatAreNoAddress) {
  const Peer peer("0000:02");
  const std::string& good = peer.address();
  for (const std::string& bad : {std::string(), good.substr(0, 50), good.substr(0, good.size() - 1), good + "x",
                                 std::string(good.size(), '\0'), "x" + good.substr(1)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(link_->Connect(bad)));
  }
}

TEST_F(PeerLinkTest, TellsAWaitThatRanOutFromAnAbort) {
  const Peer peer("0000:02");
  ASSERT_EQ(link_->Connect(peer.address()), absl::OkStatus());
  *link_->error_word() = kWaitTimedOut;
  EXPECT_TRUE(absl::IsDeadlineExceeded(link_->status())) << link_->status();
  link_->Abort(absl::CancelledError("drained"));
  EXPECT_EQ(link_->status(), absl::CancelledError("drained"));
  EXPECT_EQ(*link_->abort_word(), 1u);
}

}  // namespace
}  // namespace winnow::device
