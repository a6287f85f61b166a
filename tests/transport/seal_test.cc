// Links with a key: what they refuse, and what can be read on their way.
#include <gmock/gmock.h>

#include "tests/transport/links.h"
#include "transport/seal/frame_seal.h"
#include "transport/wire/wire_check.h"

namespace winnow {
namespace {

using testing::HasSubstr;

std::vector<TransportUnderTest> SealedKinds() {
  std::vector<TransportUnderTest> kinds;
  for (const TransportUnderTest& kind : KindsUnderTest()) {
    if (kind.mode != DataPlaneMode::kPlain) kinds.push_back(kind);
  }
  return kinds;
}

class SealedLinkTest : public ::testing::TestWithParam<TransportUnderTest> {};
INSTANTIATE_TEST_SUITE_P(All, SealedLinkTest, ::testing::ValuesIn(SealedKinds()), KindName);

TransportUnderTest WithoutKeys(TransportUnderTest kind) {
  kind.mode = DataPlaneMode::kPlain;
  kind.path = nullptr;
  return kind;
}

// Somebody who has found the address of an end, but was told no key. He calls himself by `incarnation`.
struct Stranger : End {
  Stranger(const TransportUnderTest& kind, uint64_t incarnation, const Channel& victim)
      : End(WithoutKeys(kind), {.incarnation = incarnation}) {
    EXPECT_EQ(channel->Connect(victim.LocalAddress()), absl::OkStatus());
  }
};

TEST_P(SealedLinkTest, AStrangersFramesAreDroppedAndTheLinkGoesOn) {
  Link link(GetParam());
  Stranger stranger(GetParam(), 0xc, *link.b.channel);
  ASSERT_EQ(PostBytes(*link.a.channel, 500, 0), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 1; }));
  for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(PostBytes(*stranger.channel, 100, 50 + i), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({stranger.transport.get(), link.a.transport.get(), link.b.transport.get()},
                        [&] { return link.b.transport->counters().stray_frames == 3; }));
  ASSERT_EQ(PostBytes(*link.a.channel, 500, 1), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 2; }));
  EXPECT_TRUE(HoldsBytes(link.b.frames[1], 500, 1));
  EXPECT_EQ(link.b.transport->counters().bad_frames, 0u);
}

// He has listened, and says that he is the peer. A link cannot tell him from a peer whose frames were changed on their
// way, so it ends; nothing of his is delivered.
TEST_P(SealedLinkTest, WhoPretendsToBeThePeerEndsTheLinkUnheard) {
  std::string why;
  End a(GetParam(), {.incarnation = 0xa}),
      b(GetParam(), {.incarnation = 0xb, .on_refused_frame = [&](bool stray, const absl::Status&status) {
                       EXPECT_FALSE(stray);
                       why = std::string(status.message());
                     }});
  Open(*a.channel, *b.channel);
  Stranger stranger(GetParam(), 0xa, *b.channel);
  ASSERT_EQ(PostBytes(*stranger.channel, 100, 50), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({stranger.transport.get(), a.transport.get(), b.transport.get()},
                        [&] { return !b.channel->failed().ok(); }));
  EXPECT_TRUE(absl::IsDataLoss(b.channel->failed())) << b.channel->failed();
  EXPECT_EQ(why, "frame was not sealed with the key of this link");
  EXPECT_TRUE(b.frames.empty());
  EXPECT_EQ(b.transport->counters().bad_frames, 1u);
}

// The same on a plain link, where it works: what the key is for.
TEST(PlainLinkTest, WhoPretendsToBeThePeerIsHeard) {
  Link link(kInproc);
  Stranger stranger(kInproc, 0xa, *link.b.channel);
  ASSERT_EQ(PostBytes(*stranger.channel, 100, 50), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 1; }));
  EXPECT_TRUE(HoldsBytes(link.b.frames[0], 100, 50));
}

// Frames of a link, the third of which `change` replaces by what somebody made of it and of the first one.
void ExpectRefused(const TransportUnderTest& kind, const std::string& why,
                   const std::function<void(const wire::FrameHeader& first, std::span<const std::byte> first_payload,
                                            wire::FrameHeader& third, std::span<std::byte> third_payload)>& change) {
  wire::FrameHeader first_header{};
  std::vector<std::byte> first_payload;
  int posted = 0;
  Link link(kind, size_t{16} << 20, [&](wire::FrameHeader& header, std::span<std::byte> payload) {
    if (++posted == 1) {
      first_header = header;
      first_payload.assign(payload.begin(), payload.end());
    }
    if (posted == 3) change(first_header, first_payload, header, payload);
    return PostFault::kNone;
  });
  for (uint32_t i = 0; i < 5; ++i) ASSERT_EQ(PostBytes(*link.a.channel, 9000, i), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return !link.b.channel->failed().ok(); }));
  EXPECT_TRUE(absl::IsDataLoss(link.b.channel->failed()));
  EXPECT_THAT(std::string(link.b.channel->failed().message()), HasSubstr(why));
  EXPECT_EQ(link.b.frames.size(), 2u);
  EXPECT_EQ(link.b.transport->counters().bad_frames, 1u);
}

TEST_P(SealedLinkTest, AReplayedFrameIsRefused) {
  ExpectRefused(GetParam(), "frame 1 arrived where 3 was due",
                [](const auto& first, auto first_payload, auto& third, auto payload) {
                  third = first;
                  std::copy(first_payload.begin(), first_payload.end(), payload.begin());
                });
}

TEST_P(SealedLinkTest, AReplayedFrameWithTheDueNumberIsRefused) {
  ExpectRefused(GetParam(), "not sealed with the key",
                [](const auto& first, auto first_payload, auto& third, auto payload) {
                  third = first;
                  third.frame_number = 3;
                  SealHeader(third);
                  std::copy(first_payload.begin(), first_payload.end(), payload.begin());
                });
}

TEST_P(SealedLinkTest, AChangedHeaderWithARightChecksumIsRefused) {
  ExpectRefused(GetParam(), "not sealed with the key", [](const auto&, auto, auto& third, auto) {
    third.apply_position ^= 1;
    SealHeader(third);
  });
}

// What is on its way, as the faults of a link see it: the rows themselves only where frames are not encrypted.
TEST_P(SealedLinkTest, PayloadsCannotBeReadWhereTheyAreEncrypted) {
  std::vector<std::byte> sent;
  Link link(GetParam(), size_t{16} << 20, [&](wire::FrameHeader&, std::span<std::byte> payload) {
    sent.assign(payload.begin(), payload.end());
    return PostFault::kNone;
  });
  ASSERT_EQ(PostBytes(*link.a.channel, 5000, 7), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 1; }));
  EXPECT_TRUE(HoldsBytes(link.b.frames[0], 5000, 7));
  const std::vector<std::byte> rows = SomeBytes(5000, 7);
  int equal = 0;
  for (size_t i = 0; i < rows.size(); ++i) equal += sent[i] == rows[i];
  if (GetParam().mode == DataPlaneMode::kEncrypted) {
    EXPECT_LT(equal, 100) << "some 20 of 5000 bytes are equal by chance";
  } else {
    EXPECT_EQ(equal, 5000);
  }
}

class FrameSealTest : public ::testing::TestWithParam<Protection> {
 protected:
  FrameSealTest() {
    const LinkProtection protection{.level = GetParam(), .key = SessionKey::Make().value()};
    caller_ = FrameSeal::Create(protection, FrameSeal::End::kCaller).value();
    answerer_ = FrameSeal::Create(protection, FrameSeal::End::kAnswerer).value();
  }
  std::unique_ptr<FrameSeal> caller_, answerer_;
};
INSTANTIATE_TEST_SUITE_P(All, FrameSealTest,
                         ::testing::Values(Protection::kHeaders, Protection::kAuthenticated, Protection::kEncrypted),
                         [](const auto& info) { return "Level" + std::to_string(static_cast<int>(info.param)); });

TEST_P(FrameSealTest, EveryChangedBitIsFound) {
  const std::vector<std::byte> plain = SomeBytes(100, 1);
  std::vector<std::byte> sealed = plain;
  wire::FrameHeader header = SomeHeader();
  header.frame_number = 1;
  caller_->Seal(header, sealed);
  EXPECT_EQ(CheckFrameHeader(header), absl::OkStatus());
  for (size_t bit = 0; bit < 8 * (sizeof(header) + sealed.size()); ++bit) {
    wire::FrameHeader bent = header;
    std::vector<std::byte> payload = sealed;
    std::byte* const at =
        bit / 8 < sizeof(header) ? reinterpret_cast<std::byte*>(&bent) + bit / 8 : &payload[bit / 8 - sizeof(header)];
    *at ^= std::byte{1} << bit % 8;
    SealHeader(bent);  // whoever changes it can work out its checksum
    const bool in_checksum = std::memcmp(&bent, &header, sizeof(header)) == 0 && payload == sealed;
    EXPECT_EQ(absl::IsDataLoss(answerer_->Open(bent, payload)), !in_checksum) << "bit " << bit;
  }
  std::vector<std::byte> cut = sealed;
  cut.pop_back();
  EXPECT_TRUE(absl::IsDataLoss(answerer_->Open(header, cut)));
  // None of this has spoilt the seal.
  EXPECT_EQ(answerer_->Open(header, sealed), absl::OkStatus());
  EXPECT_EQ(sealed, plain);
}

TEST_P(FrameSealTest, AFrameSentBackIsRefused) {
  std::vector<std::byte> payload = SomeBytes(64, 1);
  wire::FrameHeader header = SomeHeader();
  header.frame_number = 1;
  caller_->Seal(header, payload);
  EXPECT_TRUE(absl::IsDataLoss(caller_->Open(header, payload)));
}

TEST_P(FrameSealTest, AnotherLinksFrameIsRefused) {
  const auto other =
      FrameSeal::Create({.level = GetParam(), .key = SessionKey::Make().value()}, FrameSeal::End::kCaller).value();
  std::vector<std::byte> payload = SomeBytes(64, 1);
  wire::FrameHeader header = SomeHeader();
  header.frame_number = 1;
  other->Seal(header, payload);
  EXPECT_TRUE(absl::IsDataLoss(answerer_->Open(header, payload)));
}

// Equal frames, told apart by their number, or by being a credit, have nothing in common on their way.
TEST_P(FrameSealTest, NoNumberIsUsedTwice) {
  const std::vector<std::byte> zeros(64);
  std::vector<std::vector<std::byte>> payloads;
  std::vector<wire::FrameHeader::Tag> tags;
  const auto seal = [&](FrameSeal& by, uint64_t number, wire::FrameType type) {
    wire::FrameHeader header = SomeHeader();
    header.type = type;
    header.frame_number = number;
    payloads.push_back(zeros);
    by.Seal(header, payloads.back());
    tags.push_back(header.tag);
  };
  for (FrameSeal* by : {caller_.get(), answerer_.get()}) {
    for (const uint64_t number : {1, 2, 256}) {
      seal(*by, number, wire::FrameType::kLayer);
      seal(*by, number, wire::FrameType::kCredit);
    }
  }
  for (size_t i = 0; i < tags.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(tags[i], tags[j]) << i << " and " << j;
      EXPECT_EQ(payloads[i] == payloads[j], GetParam() != Protection::kEncrypted) << i << " and " << j;
    }
  }
}

// By what the caller and the answerer were told, and where the link runs.
TEST(ProtectionTest, IsChosenByWhatBothWereToldAndByWhereTheLinkRuns) {
  using M = DataPlaneMode;
  using P = Protection;
  const LinkSurroundings inside{.key_is_secret = true}, host{.key_is_secret = true, .crosses_processes = true},
      hosts{.key_is_secret = true, .crosses_hosts = true, .crosses_processes = true},
      hosts_without_tls{.crosses_hosts = true, .crosses_processes = true};
  const struct {
    M caller, answerer;
    std::vector<P> in_process_on_host_between_hosts_without_tls;
  } rows[] = {
      {M::kAuto, M::kAuto, {P::kPlain, P::kHeaders, P::kEncrypted, P::kPlain}},
      {M::kAuto, M::kPlain, {P::kPlain, P::kPlain, P::kPlain, P::kPlain}},
      {M::kPlain, M::kPlain, {P::kPlain, P::kPlain, P::kPlain, P::kPlain}},
      {M::kAuthenticated, M::kAuto, {P::kAuthenticated, P::kAuthenticated, P::kAuthenticated, P::kAuthenticated}},
      {M::kEncrypted, M::kEncrypted, {P::kEncrypted, P::kEncrypted, P::kEncrypted}},
      {M::kAuto, M::kEncrypted, {P::kEncrypted, P::kEncrypted, P::kEncrypted}},
  };
  for (const auto& row : rows) {
    const std::vector<LinkSurroundings> links = {inside, host, hosts, hosts_without_tls};
    for (size_t i = 0; i < links.size(); ++i) {
      const auto chosen = ChooseProtection(row.caller, row.answerer, links[i]);
      const std::string what =
          std::string(ModeName(row.caller)) + ", " + std::string(ModeName(row.answerer)) + ", " + std::to_string(i);
      if (i < row.in_process_on_host_between_hosts_without_tls.size()) {
        EXPECT_EQ(chosen.value(), row.in_process_on_host_between_hosts_without_tls[i]) << what;
      } else {
        EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("--data-plane=encrypted needs TLS")) << what;
      }
    }
  }
  EXPECT_THAT(std::string(ChooseProtection(M::kPlain, M::kEncrypted, hosts).status().message()),
              HasSubstr("--data-plane is plain at the caller and encrypted here"));
}

TEST(ProtectionTest, AnEndThatWasToldToEncryptTakesNothingLess) {
  TransportUnderTest careless = kInproc, careful = kInproc;
  careful.mode = DataPlaneMode::kEncrypted;
  End a(careful, {.incarnation = 1}), b(careless, {.incarnation = 2});
  const LinkProtection plain = Answer(*b.channel, *a.channel);  // as if it had not been told
  ASSERT_EQ(plain.level, Protection::kPlain);
  ASSERT_EQ(a.channel->Connect(b.channel->LocalAddress()), absl::OkStatus());
  const absl::Status taken = a.channel->TakeProtection(plain);
  EXPECT_TRUE(absl::IsFailedPrecondition(taken));
  EXPECT_EQ(std::string(taken.message()), "the peer makes the link plain, --data-plane here is encrypted");
}

TEST(SessionKeyTest, KeysDifferAndHaveOneLength) {
  const SessionKey a = SessionKey::Make().value(), b = SessionKey::Make().value();
  EXPECT_NE(a.bytes(), b.bytes());
  EXPECT_EQ(SessionKey::FromBytes(a.bytes()).value().bytes(), a.bytes());
  EXPECT_EQ(std::string(SessionKey::FromBytes("short").status().message()), "the key of a link has 5 bytes, not 32");
}

}  // namespace
}  // namespace winnow
