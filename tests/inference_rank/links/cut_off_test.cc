// Links to cache ranks that are there and do not answer, as behind a network that lets nothing through.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "inference_rank/links/link_watch.h"
#include "tests/inference_rank/served_cache_rank.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLong{60};  // that a test must not take

// Takes connections, and says nothing.
class MutePort {
 public:
  MutePort() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_, 16), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~MutePort() { Close(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  void AwaitConnection() const {
    pollfd listening{socket_, POLLIN, 0};
    EXPECT_EQ(poll(&listening, 1, 20'000), 1);
  }
  void Close() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }

 private:
  int socket_;
  int port_ = 0;
};

class CutOffTest : public testing::Test {
 protected:
  ~CutOffTest() override { links_.Clear(); }

  static LinkTable::Options OptionsFor(const test::ServedCacheRank& there) {
    LinkTable::Options options;
    options.identity.set_rank("inference-0");
    options.fingerprint = there.rank->Fingerprint();
    options.fingerprint.mutable_kv_shape()->set_num_layers(2);
    options.fingerprint.mutable_kv_shape()->set_num_query_heads(4);
    options.fingerprint.mutable_kv_shape()->set_num_kv_heads(2);
    options.fingerprint.mutable_kv_shape()->set_head_dim(8);
    options.fingerprint.mutable_kv_shape()->set_kv_dtype(v1::KV_DTYPE_F32);
    for (int i = 0; i < 4; ++i) options.fingerprint.mutable_kv_shape()->add_rope_inv_freq(1.0f / (1 + i));
    options.fingerprint.mutable_kv_shape()->set_rope_attention_factor(1);
    options.fingerprint.mutable_kv_shape()->set_attention_scale(0.3f);
    options.connect_timeout = kLong;
    return options;
  }
  absl::StatusOr<std::shared_ptr<CacheLink>> Get(const v1::Identity& cache_rank) {
    return links_.Get(cache_rank, WholeModel(kLayout));
  }

  static inline const KvLayout kLayout{2, 4, 2, 8, Dtype::kF32};
  test::ServedCacheRank there_{"cache-0", 61, size_t{4} << 20};
  MutePort mute_;
  std::unique_ptr<Transport> transport_ = NewInprocTransport({.incarnation = 60});
  LinkTable links_{OptionsFor(there_), *transport_,
                   [](const std::function<void()>& work) {
                     work();
                     return true;
                   },
                   [] {}};
};

TEST_F(CutOffTest, HoldsUpNoLinkToAnotherCacheRank) {
  v1::Identity cut_off;
  cut_off.set_rank("cache-1");
  cut_off.set_address(mute_.address());
  auto connecting = std::async(std::launch::async, [&] { return Get(cut_off).status(); });
  mute_.AwaitConnection();
  EXPECT_TRUE(Get(there_.identity).ok());
  EXPECT_TRUE(Get(there_.identity).ok()) << "the same one";
  EXPECT_EQ(connecting.wait_for(milliseconds(0)), std::future_status::timeout) << "it was waited for";
  mute_.Close();
  EXPECT_FALSE(connecting.get().ok());
}

TEST_F(CutOffTest, CallsEndWithTheirLink) {
  CacheLink link(mute_.address(), grpc::CreateChannel(mute_.address(), grpc::InsecureChannelCredentials()), [] {});
  EXPECT_FALSE(link.TakeAwaited());
  const auto start = std::chrono::steady_clock::now();
  auto call = std::async(std::launch::async, [&] { return link.Open({}, kLong).status(); });
  mute_.AwaitConnection();
  EXPECT_TRUE(link.TakeAwaited()) << "somebody waits for an answer";
  link.MarkDead();
  EXPECT_EQ(call.get().code(), absl::StatusCode::kUnavailable) << "which is tried elsewhere";
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLong);
  EXPECT_EQ(link.Open({}, kLong).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(link.TakeAwaited());
  EXPECT_EQ(link.num_heard(), 0u);
}

// Somebody waits for the link, and no frame comes. The served cache rank has no AdminService: it answers nobody who
// asks.
TEST_F(CutOffTest, ALinkIsGivenUpWhenARouterHasGivenUpItsCacheRank) {
  const std::shared_ptr<CacheLink> link = Get(there_.identity).value();
  LinkWatch watch(links_, {});
  const auto start = std::chrono::steady_clock::now();
  while (link->alive() && std::chrono::steady_clock::now() - start < kLong) {
    link->MarkAwaited();
    watch.NoteExpired({{there_.identity}});
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_FALSE(link->alive());
  EXPECT_TRUE(links_.Live().empty());
}

TEST_F(CutOffTest, AnotherStartOfACacheRankIsNotMeant) {
  const std::shared_ptr<CacheLink> link = Get(there_.identity).value();
  v1::Identity earlier = there_.identity;
  earlier.set_incarnation(there_.identity.incarnation() - 1);
  LinkWatch watch(links_, {});
  for (int i = 0; i < 100; ++i) {
    link->MarkAwaited();
    if (i % 10 == 0) link->NoteHeard();  // else its own silence would count
    watch.NoteExpired({{earlier}});
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_TRUE(link->alive());
}

}  // namespace
}  // namespace winnow
