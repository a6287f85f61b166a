#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>

#include "kernels/device/params/exchange.h"
#include "tests/support/host_gpu/host_device.h"
#include "transport/peer/peer_link.h"

namespace winnow::test {

// The process of an inference rank whose GPU exposes slots, inbox and flags, until it is killed.
class InferenceGpu {
 public:
  explicit InferenceGpu(const device::ExchangeShape& exchange) {
    int to_parent[2], to_child[2];
    EXPECT_EQ(pipe(to_parent), 0);
    EXPECT_EQ(pipe(to_child), 0);
    pid_ = fork();
    if (pid_ == 0) Run(exchange, to_child[0], to_parent[1]);
    close(to_parent[1]);
    close(to_child[0]);
    from_child_ = to_parent[0];
    to_child_ = to_child[1];
    address_ = ReadText(from_child_);
  }
  ~InferenceGpu() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(from_child_);
    close(to_child_);
  }
  InferenceGpu(const InferenceGpu&) = delete;
  InferenceGpu& operator=(const InferenceGpu&) = delete;

  const std::string& address() const { return address_; }
  // Stores rows, queries and flags of all steps to come into the inbox of the peer link at this address, so that plans
  // wait for nothing.
  void RunAhead(const std::string& peer_link) const {
    WriteText(to_child_, peer_link);
    EXPECT_EQ(ReadText(from_child_), "done");
  }

 private:
  // Flags of steps far ahead; of rows and queries, 0.7.
  static constexpr int kFarAhead = 0x3f;

  [[noreturn]] static void Run(const device::ExchangeShape& exchange, int in, int out) {
    const auto device = OpenHostDevice(1).value();
    const auto slots = device->Allocate(1 << 20).value();
    const auto inbox = device->Allocate(InferenceInboxBytes(exchange)).value();
    const auto flags = device->Allocate(InferenceFlagsBytes(exchange)).value();
    const device::DeviceMemory* exposed[] = {slots.get(), inbox.get(), flags.get()};
    const auto link = device::PeerLink::Create(*device, exposed).value();
    WriteText(out, link->LocalAddress());
    if (const std::string peer_link = ReadText(in); link->Connect(peer_link).ok()) {
      std::memset(link->region(0), kFarAhead, link->region_bytes(0));
      WriteText(out, "done");
    }
    while (true) pause();
  }
  static void WriteText(int file, const std::string& text) {
    const size_t size = text.size();
    if (write(file, &size, sizeof size) < 0 || write(file, text.data(), size) < 0) _exit(1);
  }
  static std::string ReadText(int file) {
    size_t size = 0;
    if (read(file, &size, sizeof size) != sizeof size) return {};
    std::string text(size, 0);
    size_t done = 0;
    for (ssize_t got = 0; done < size && (got = read(file, text.data() + done, size - done)) > 0;) done += got;
    return text;
  }

  pid_t pid_ = 0;
  int from_child_ = -1, to_child_ = -1;
  std::string address_;
};

}  // namespace winnow::test
