#include "cmd/role/spare_descriptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <vector>

#include "common/rpc/rpc_server.h"

namespace winnow {
namespace {

// Takes all descriptors that the process may have, until the end of the object. Threads of gRPC give some back now and
// then.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    Take();
    const rlimit lowered{.rlim_cur = static_cast<rlim_t>(taken_.front()) + 1, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
    TakeAll();
  }
  ~NoDescriptors() {
    setrlimit(RLIMIT_NOFILE, &before_);
    for (const int descriptor : taken_) close(descriptor);
  }
  void TakeAll() {
    while (Take()) {
    }
  }

 private:
  bool Take() {
    const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0) taken_.push_back(descriptor);
    return descriptor >= 0;
  }
  rlimit before_{};
  std::vector<int> taken_;
};

sockaddr_in AddressOf(const RpcServer& server) {
  const std::string port = server.address().substr(server.address().rfind(':') + 1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  return address;
}

TEST(SpareDescriptor, AServerListensOnAfterALackOfDescriptors) {
  KeepSpareDescriptor();
  const auto server = RpcServer::Start("127.0.0.1:0", {}).value();
  const sockaddr_in address = AddressOf(*server);
  std::array<int, 3> clients;
  for (int& client : clients) client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int sent_away = 0;
  {
    NoDescriptors none;
    for (const int client : clients) {
      none.TakeAll();
      ASSERT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
      const timeval limit{.tv_sec = 2, .tv_usec = 0};
      setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      char byte;
      const ssize_t received = recv(client, &byte, 1, 0);
      sent_away += received == 0 || (received < 0 && errno == ECONNRESET);
    }
  }
  EXPECT_GT(sent_away, 0) << "of those who come while there is none";
  for (const int client : clients) close(client);
  const auto channel = grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials());
  EXPECT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)));
}

}  // namespace
}  // namespace winnow
