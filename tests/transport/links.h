#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"

// What the transport tests share: the implementations under test, and a link between two transports of one process.

namespace winnow {

struct TransportUnderTest {
  std::string name;
  std::string ucx_tls;  // "" for inproc
  // The payload path that channels take, once it is up; "" for none. Two transports whose incarnations differ in their
  // lowest bit can be linked by it.
  std::string path_name = {};
  std::function<PayloadPathKind(uint64_t incarnation)> path = {};
  bool notices_death = false;  // of the peer
  // What both ends are told; kAuto authenticates headers, as between two processes of one host.
  DataPlaneMode mode = DataPlaneMode::kPlain;

  std::unique_ptr<Transport> Make(TransportOptions options, LinkFaults faults = {}) const {
    options.data_plane_mode = mode;
    options.keys_are_secret = true;
    if (ucx_tls.empty()) return NewInprocTransport(options, std::move(faults));
    options.ucx_tls = ucx_tls;
    if (path) options.payload_paths = {path(options.incarnation)};
    auto transport = NewUcxTransport(options, std::move(faults));
    if (!transport.ok()) ADD_FAILURE() << transport.status();
    return *std::move(transport);
  }
};
inline void PrintTo(const TransportUnderTest& kind, std::ostream* out) {
  *out << kind.name;
}

inline const TransportUnderTest kInproc{"Inproc", ""};
inline const TransportUnderTest kUcxTcp{.name = "UcxTcp", .ucx_tls = "tcp,self", .notices_death = true};

// Of the program: every suite runs on each.
const std::vector<TransportUnderTest>& KindsUnderTest();
inline std::vector<TransportUnderTest> KindsBetweenProcesses() {
  std::vector<TransportUnderTest> kinds;
  for (const TransportUnderTest& kind : KindsUnderTest()) {
    // What hands addresses to processes hands no keys.
    if (!kind.ucx_tls.empty() && kind.mode == DataPlaneMode::kPlain) kinds.push_back(kind);
  }
  return kinds;
}

inline std::string KindName(const ::testing::TestParamInfo<TransportUnderTest>& info) {
  return info.param.name;
}

// One end: a transport with one channel, which keeps what it receives until told otherwise.
struct End {
  End(const TransportUnderTest& kind, TransportOptions options, LinkFaults faults = {})
      : transport(kind.Make(options, std::move(faults))), channel(transport->NewChannel().value()) {
    transport->SetHandler([this](Channel& from, ReceivedFrame frame) {
      last_from = &from;
      frames.push_back(std::move(frame));
    });
  }

  std::unique_ptr<Transport> transport;
  std::unique_ptr<Channel> channel;
  Channel* last_from = nullptr;
  std::vector<ReceivedFrame> frames;
};

// Moves both ends until `done`; false when that takes longer than any working link needs.
inline bool PumpUntil(const std::vector<Transport*>& transports, const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    for (Transport* transport : transports)
      transport->Wait(std::chrono::microseconds(100), std::chrono::microseconds(0));
  }
  return true;
}

// The two halves of opening a link, as its ends do it: the answerer first.
inline LinkProtection Answer(Channel& answerer, const Channel& caller) {
  EXPECT_EQ(answerer.Connect(caller.LocalAddress()), absl::OkStatus());
  auto decided = answerer.DecideProtection(DataPlaneMode::kAuto);
  EXPECT_EQ(decided.status(), absl::OkStatus());
  return *decided;
}
inline void Complete(Channel& caller, const Channel& answerer, const LinkProtection& decided) {
  EXPECT_EQ(caller.Connect(answerer.LocalAddress()), absl::OkStatus());
  EXPECT_EQ(caller.TakeProtection(decided), absl::OkStatus());
}
inline void Open(Channel& caller, Channel& answerer) {
  Complete(caller, answerer, Answer(answerer, caller));
}

// Paths may take a while to come up; what is tested is what happens from then on.
inline void AwaitPath(const TransportUnderTest& kind, const std::vector<Transport*>& transports,
                      const std::vector<Channel*>& channels) {
  EXPECT_TRUE(PumpUntil(transports,
                        [&] {
                          return std::all_of(channels.begin(), channels.end(), [&](Channel* channel) {
                            return channel->payload_path() == kind.path_name;
                          });
                        }))
      << "no " << kind.path_name;
}

struct Link {
  explicit Link(const TransportUnderTest& kind, size_t window_bytes = size_t{16} << 20, LinkFaults faults_of_a = {})
      : a(kind, {.incarnation = 0xa, .window_bytes = window_bytes}, std::move(faults_of_a)),
        b(kind, {.incarnation = 0xb, .window_bytes = window_bytes}) {
    Open(*a.channel, *b.channel);
    AwaitPath(kind, {a.transport.get(), b.transport.get()}, {a.channel.get(), b.channel.get()});
  }
  bool PumpUntil(const std::function<bool()>& done) {
    return winnow::PumpUntil({a.transport.get(), b.transport.get()}, done);
  }

  End a, b;
};

inline wire::FrameHeader SomeHeader(uint32_t row_count = 0) {
  wire::FrameHeader header{};
  header.type = wire::FrameType::kLayer;
  header.phase = wire::Phase::kPrefetch;
  header.flags = 5;
  header.plan = 77;
  header.sequence_id = 0x123456789abcdef0;
  header.attach_epoch = 3;
  header.apply_position = 99;
  header.layer_first = 4;
  header.prediction_layer = 6;
  header.row_count = row_count;
  return header;
}

// The bytes of payload number `seed`: two payloads differ in almost every byte.
inline std::vector<std::byte> SomeBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size + 8);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes[i], &word, sizeof(word));
  }
  bytes.resize(size);
  return bytes;
}

// Posts a frame with the bytes of payload `seed`, which also becomes its row_count.
inline absl::Status PostBytes(Channel& channel, size_t size, uint32_t seed) {
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, channel.Allocate(size));
  WINNOW_CHECK(buffer.payload().size() == size);
  const std::vector<std::byte> bytes = SomeBytes(size, seed);
  std::memcpy(buffer.payload().data(), bytes.data(), size);
  return channel.Post(SomeHeader(seed), std::move(buffer));
}

inline bool HoldsBytes(const ReceivedFrame& frame, size_t size, uint32_t seed) {
  const std::vector<std::byte> expected = SomeBytes(size, seed);
  return frame.header().row_count == seed && frame.payload().size() == size &&
         std::memcmp(frame.payload().data(), expected.data(), size) == 0;
}

}  // namespace winnow
