#pragma once
#include <memory>
#include <string>

#include "common/rpc/credentials.h"
#include "grpcpp/channel.h"

namespace winnow {

// Largest message in either direction, on every server and channel: a prompt of a million tokens with its logprobs
// fits.
inline constexpr int kMaxMessageBytes = 64 << 20;

// A channel to "host:port": keepalive 10 s with 5 s to answer (also while idle), reconnection after
// 0.1 to 1 s, and never through an HTTP proxy of the environment. It connects on first use.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, const Credentials& credentials = {});

}  // namespace winnow
