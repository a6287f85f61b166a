// Somebody who writes what he likes to the port of a UCX worker, without a transport of ours.
#include <gmock/gmock.h>
#include <ucp/api/ucp.h>

#include "tests/transport/links.h"
#include "transport/channel_address.h"
#include "transport/wire/wire_check.h"

namespace winnow {
namespace {

// Sends messages of any size and content to a worker over TCP.
class RawSender {
 public:
  explicit RawSender(const Channel& victim) {
    ucp_config_t* config = nullptr;
    WINNOW_CHECK(ucp_config_read(nullptr, nullptr, &config) == UCS_OK);
    WINNOW_CHECK(ucp_config_modify(config, "TLS", "tcp,self") == UCS_OK);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    WINNOW_CHECK(ucp_init(&params, config, &context_) == UCS_OK);
    ucp_config_release(config);
    const ucp_worker_params_t worker_params{};
    WINNOW_CHECK(ucp_worker_create(context_, &worker_params, &worker_) == UCS_OK);
    const ChannelAddress address = ChannelAddress::Decode(victim.LocalAddress(), ChannelAddress::Kind::kUcx).value();
    std::string_view endpoint = address.endpoint;
    const std::string_view worker = *TakeText(endpoint);
    ucp_ep_params_t ep_params{};
    ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    ep_params.address = reinterpret_cast<const ucp_address_t*>(worker.data());
    WINNOW_CHECK(ucp_ep_create(worker_, &ep_params, &endpoint_) == UCS_OK);
  }
  ~RawSender() {
    for (void* request : pending_) ucp_request_free(request);
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  RawSender(const RawSender&) = delete;
  RawSender& operator=(const RawSender&) = delete;

  void Send(std::span<const std::byte> header, std::span<const std::byte> payload) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    const ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint_, 1, header.data(), header.size(), payload.data(), payload.size(), &params);
    WINNOW_CHECK(!UCS_PTR_IS_ERR(request));
    if (request != nullptr) pending_.push_back(request);
  }
  void Progress() { ucp_worker_progress(worker_); }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<void*> pending_;
};

TransportUnderTest TcpLink(DataPlaneMode mode) {
  TransportUnderTest kind = kUcxTcp;
  kind.mode = mode;
  return kind;
}

TEST(StrangerTest, WhatIsNoFrameOfTheLinkDisturbsNothing) {
  Link link(TcpLink(DataPlaneMode::kEncrypted));
  RawSender stranger(*link.b.channel);
  const std::vector<std::byte> noise = SomeBytes(3000, 1);
  wire::FrameHeader announcement = SomeHeader();  // of a payload on a path that there is not
  announcement.channel = 12345;
  SealFrame(announcement, {});
  std::vector<std::byte> announced(sizeof(announcement) + sizeof(PayloadRef));
  std::memcpy(announced.data(), &announcement, sizeof(announcement));
  stranger.Send(std::span(noise).first(7), noise);
  stranger.Send(std::span(noise).first(sizeof(wire::FrameHeader)), noise);
  stranger.Send({}, {});
  stranger.Send(announced, {});
  ASSERT_TRUE(link.PumpUntil([&] {
    stranger.Progress();
    return link.b.transport->counters().stray_frames == 4;
  }));
  ASSERT_EQ(PostBytes(*link.a.channel, 500, 1), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 1; }));
  EXPECT_TRUE(HoldsBytes(link.b.frames[0], 500, 1));
}

// On a plain link the same bytes end it: what the numbers of a link are worth without a key.
TEST(StrangerTest, APlainLinkEndsByThem) {
  Link link(TcpLink(DataPlaneMode::kPlain));
  RawSender stranger(*link.b.channel);
  const std::vector<std::byte> noise = SomeBytes(3000, 1);
  stranger.Send(std::span(noise).first(7), noise);
  ASSERT_TRUE(link.PumpUntil([&] {
    stranger.Progress();
    return !link.b.channel->failed().ok();
  }));
  EXPECT_TRUE(absl::IsDataLoss(link.b.channel->failed()));
}

}  // namespace
}  // namespace winnow
