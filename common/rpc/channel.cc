#include "common/rpc/channel.h"

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace winnow {

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // How long one attempt to connect may take, whatever the name says: handshakes need a few round trips and a share of
  // a core on both sides. Longer would hold up the next attempt where packets are lost.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // Channels of one process to one address would otherwise share a connection, and with it its backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, credentials.ForChannels(), arguments);
}

}  // namespace winnow
