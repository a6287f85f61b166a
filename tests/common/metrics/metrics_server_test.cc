#include "common/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;

std::string Get(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(std::stoi(address.substr(address.rfind(':') + 1)));
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&target), sizeof target), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) answer.append(buffer, n);
  close(fd);
  return answer;
}

TEST(MetricsServer, ServesTheRegistryOnAPortOfTheSystemsChoice) {
  auto registry = std::make_shared<MetricsRegistry>();
  registry->AddCounter("winnow_x_total", "Xs.").Increment(41);
  auto server = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_NE((*server)->address(), "127.0.0.1:0");
  const std::string answer = Get((*server)->address());
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("winnow_x_total 41\n"));
}

TEST(MetricsServer, ATakenPortIsAnErrorThatNamesTheAddress) {
  auto registry = std::make_shared<MetricsRegistry>();
  auto first = MetricsServer::Start("127.0.0.1:0", registry);
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = MetricsServer::Start((*first)->address(), registry);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

// Of several, some would find the library's thread at the beginning of its 2 s of sleep.
TEST(MetricsServer, EndsWithoutWaitingForItsThreadToLookUp) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    auto server = MetricsServer::Start("127.0.0.1:0", std::make_shared<MetricsRegistry>());
    ASSERT_TRUE(server.ok()) << server.status();
    Get((*server)->address());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << "10 s where each is waited for";
}

TEST(MetricsServer, AnAddressThatIsNotOursIsAnError) {
  auto registry = std::make_shared<MetricsRegistry>();
  for (const char* address : {"192.0.2.1:0", "127.0.0.1", "no.such.host.invalid:0"}) {
    EXPECT_EQ(MetricsServer::Start(address, registry).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

}  // namespace
}  // namespace winnow
