#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <thread>

#include "cache_rank/service/cache_rank.h"
#include "cache_rank/store/kv_block_pool.h"
#include "common/selection/selection_proto.h"
#include "tests/cache_rank/reference.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/transport.grpc.pb.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kMemoryBytes = size_t{4} << 20;

// A served cache rank with gRPC's in-process channel in front of it.
class CacheRankServiceTest : public testing::Test {
 protected:
  explicit CacheRankServiceTest(std::shared_ptr<const QueryProjection> projection = nullptr)
      : client_transport_(NewInprocTransport({.incarnation = 50, .window_bytes = 1 << 20, .ucx_tls = ""})) {
    CacheRank::Options options;
    options.projection = std::move(projection);
    options.identity.set_rank("cache-0");
    options.data_plane.memory_bytes = kMemoryBytes;
    options.data_plane.detach_ttl = milliseconds(50);
    options.tick = milliseconds(5);
    rank_ =
        std::make_unique<CacheRank>(options, CpuKernels("portable").value(),
                                    NewInprocTransport({.incarnation = 51, .window_bytes = 1 << 20, .ucx_tls = ""}));
    rank_->Start();
    grpc::ServerBuilder builder;
    for (grpc::Service* service : rank_->services()) builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel({});
    cache_ = v1::CacheService::NewStub(channel_);
    transport_ = v1::TransportService::NewStub(channel_);
  }
  ~CacheRankServiceTest() override {
    data_channel_.reset();
    rank_->Stop();
    server_->Shutdown();
  }

  using Stream = grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeResponse>;
  v1::ExchangeRequest Request() {
    v1::ExchangeRequest request;
    request.mutable_identity()->set_rank("inference-0");
    *request.mutable_fingerprint() = rank_->Fingerprint();
    *request.mutable_fingerprint()->mutable_kv_shape() = test::SmallShape().proto;
    request.set_transport("inproc");
    data_channel_ = client_transport_->NewChannel().value();
    request.set_worker_address(data_channel_->LocalAddress());
    return request;
  }
  // Opens a stream; returns its channel id, 0 when it was refused.
  uint64_t Exchange(grpc::ClientContext& context, std::unique_ptr<Stream>& stream, const v1::ExchangeRequest& request) {
    stream = transport_->Exchange(&context);
    stream->Write(request);
    v1::ExchangeResponse response;
    if (!stream->Read(&response)) return 0;
    EXPECT_EQ(response.identity().rank(), "cache-0");
    EXPECT_TRUE(data_channel_->Connect(response.worker_address()).ok());
    return response.channel_id();
  }
  grpc::Status Open(uint64_t channel, uint64_t id, uint32_t max_positions, uint32_t* epoch = nullptr) {
    grpc::ClientContext context;
    v1::OpenSequenceRequest request;
    request.set_channel_id(channel);
    request.set_sequence_id(id);
    *request.mutable_selection() = ToProto(test::SmallSpec(Predictor::kDepth));
    request.set_max_positions(max_positions);
    v1::OpenSequenceResponse response;
    grpc::Status status = cache_->OpenSequence(&context, request, &response);
    if (epoch != nullptr) *epoch = response.attach_epoch();
    return status;
  }
  grpc::Status Release(uint64_t id, uint32_t epoch) {
    grpc::ClientContext context;
    v1::ReleaseSequenceRequest request;
    request.set_sequence_id(id);
    request.set_attach_epoch(epoch);
    v1::ReleaseSequenceResponse response;
    return cache_->ReleaseSequence(&context, request, &response);
  }
  bool Eventually(const std::function<bool(const CacheRankSnapshot&)>& condition) {
    const auto give_up = steady_clock::now() + std::chrono::seconds(20);
    while (steady_clock::now() < give_up) {
      if (condition(rank_->metrics().Snapshot())) return true;
      std::this_thread::yield();
    }
    return false;
  }

  std::unique_ptr<Transport> client_transport_;
  std::unique_ptr<Channel> data_channel_;
  std::unique_ptr<CacheRank> rank_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::CacheService::Stub> cache_;
  std::unique_ptr<v1::TransportService::Stub> transport_;
};

// gRPC connects again by itself, to whatever process is at the address now.
TEST_F(CacheRankServiceTest, ACallThatIsMeantForAnotherStartOfTheProcessFindsNoChannel) {
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  const uint64_t channel = Exchange(context, stream, Request());
  ASSERT_NE(channel, 0u);
  constexpr uint64_t kOtherStart = uint64_t{1} << 32;
  EXPECT_EQ(Open(channel ^ kOtherStart, 7, 100).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(Open(channel, 7, 100).ok());
}

TEST_F(CacheRankServiceTest, OpensAttachesForksAndReleases) {
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  const uint64_t channel = Exchange(context, stream, Request());
  ASSERT_NE(channel, 0u);
  uint32_t epoch = 0;
  ASSERT_TRUE(Open(channel, 7, 100, &epoch).ok());
  EXPECT_EQ(epoch, 1u);
  EXPECT_EQ(Open(channel, 7, 100).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Open(channel + 1, 8, 100).error_code(), grpc::StatusCode::NOT_FOUND);
  const KvLayout layout = test::SmallShape().layout;
  const uint32_t most = kBlockTokens * (kMemoryBytes / BlockBytes(layout) / layout.num_lists());
  const grpc::Status full = Open(channel, 8, most);
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "until the other ends";
  EXPECT_NE(full.error_message().find("free"), std::string::npos);
  const grpc::Status too_long = Open(channel, 8, most + 1);
  EXPECT_EQ(too_long.error_code(), grpc::StatusCode::OUT_OF_RANGE) << "it can never fit";
  EXPECT_NE(too_long.error_message().find("max_tokens"), std::string::npos) << too_long.error_message();
  {
    grpc::ClientContext call;
    v1::AttachSequenceRequest request;
    request.set_channel_id(channel);
    request.set_sequence_id(7);
    request.set_max_restart_position(100);
    v1::AttachSequenceResponse response;
    ASSERT_TRUE(cache_->AttachSequence(&call, request, &response).ok());
    EXPECT_EQ(response.attach_epoch(), 2u);
    EXPECT_EQ(response.restart_position(), 0u);
  }
  {
    grpc::ClientContext call;
    v1::ForkSequenceRequest request;
    request.set_channel_id(channel);
    request.set_source_sequence_id(7);
    request.set_sequence_id(9);
    request.set_max_positions(64);
    v1::ForkSequenceResponse response;
    ASSERT_TRUE(cache_->ForkSequence(&call, request, &response).ok());
    EXPECT_EQ(response.attach_epoch(), 1u);
  }
  EXPECT_EQ(rank_->Load().running_sequences(), 2u);
  EXPECT_LT(rank_->Load().free_bytes(), rank_->Load().total_bytes());
  EXPECT_EQ(Release(7, 1).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(Release(7, 2).ok());
  EXPECT_TRUE(Release(7, 2).ok()) << "idempotent";
  EXPECT_TRUE(Release(9, 1).ok());
  EXPECT_TRUE(Eventually([](const auto& m) { return m.blocks_reserved == 0 && m.active_sequences == 0; }));
  context.TryCancel();
  stream->Finish();
}

TEST_F(CacheRankServiceTest, MakesAKeyForEachChannelThatAsksForOne) {
  std::set<std::string> keys;
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    v1::ExchangeRequest request = Request();
    request.set_data_plane_mode(v1::DATA_PLANE_MODE_AUTHENTICATED);
    const std::unique_ptr<Stream> stream = transport_->Exchange(&context);
    stream->Write(request);
    v1::ExchangeResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.protection().level(), v1::LinkProtection::LEVEL_AUTHENTICATED);
    EXPECT_EQ(response.protection().session_key().size(), SessionKey::kBytes);
    keys.insert(response.protection().session_key());
    stream->WritesDone();
  }
  EXPECT_EQ(keys.size(), 3u);
}

TEST_F(CacheRankServiceTest, EncryptsNothingWithAKeyThatCouldBeRead) {
  grpc::ClientContext context;
  v1::ExchangeRequest request = Request();
  request.set_data_plane_mode(v1::DATA_PLANE_MODE_ENCRYPTED);
  std::unique_ptr<Stream> stream;
  EXPECT_EQ(Exchange(context, stream, request), 0u);
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("--data-plane=encrypted needs TLS"), std::string::npos)
      << status.error_message();
}

TEST_F(CacheRankServiceTest, NamesTheFingerprintFieldThatDiffers) {
  const auto refusal = [&](const v1::ExchangeRequest& request) {
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
    EXPECT_EQ(Exchange(context, stream, request), 0u);
    return stream->Finish();
  };
  v1::ExchangeRequest request = Request();
  request.mutable_fingerprint()->set_wire_version(77);
  grpc::Status status = refusal(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("wire_version is 77"), std::string::npos) << status.error_message();

  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  ASSERT_NE(Exchange(context, stream, Request()), 0u);  // fixes the shape
  request = Request();
  request.mutable_fingerprint()->mutable_kv_shape()->set_num_layers(5);
  status = refusal(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("num_layers is 5 at the caller and 3"), std::string::npos)
      << status.error_message();

  request = Request();
  request.set_transport("ucx");
  EXPECT_EQ(refusal(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  context.TryCancel();
  stream->Finish();
}

std::shared_ptr<const QueryProjection> TinyProjection() {
  const TempDir dir;
  WriteTinyCheckpoint({.num_layers = 3}, dir.path());
  return QueryProjection::Load(dir.path(), *CpuKernels("portable").value(), Dtype::kBf16, 1).value();
}

class CacheRankWithWeightsTest : public CacheRankServiceTest {
 protected:
  CacheRankWithWeightsTest() : CacheRankServiceTest(TinyProjection()) {}
};

TEST_F(CacheRankWithWeightsTest, ServesItsOwnModelOnly) {
  v1::ExchangeRequest request = Request();
  EXPECT_EQ(request.fingerprint().model_digest().size(), 64u);
  request.mutable_fingerprint()->set_model_digest("another");
  {
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
    EXPECT_EQ(Exchange(context, stream, request), 0u);
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_NE(status.error_message().find("model_digest is another at the caller"), std::string::npos)
        << status.error_message();
  }
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  EXPECT_NE(Exchange(context, stream, Request()), 0u);
  context.TryCancel();
  stream->Finish();
}

TEST_F(CacheRankServiceTest, TheEndOfTheStreamDetachesAndTheTtlFrees) {
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  const uint64_t channel = Exchange(context, stream, Request());
  ASSERT_TRUE(Open(channel, 7, 100).ok());
  context.TryCancel();
  stream->Finish();
  EXPECT_TRUE(Eventually([](const auto& m) { return m.channels == 0 && m.active_sequences == 0; }));
  EXPECT_TRUE(Eventually([](const auto& m) { return m.sequences_expired == 1 && m.blocks_reserved == 0; }));
  EXPECT_EQ(Open(channel, 8, 100).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(CacheRankServiceTest, StoppingEndsItsStreams) {
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  ASSERT_NE(Exchange(context, stream, Request()), 0u);
  rank_->Stop();
  v1::ExchangeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Open(1, 8, 100).error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace winnow
