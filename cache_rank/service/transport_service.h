#pragma once
#include "winnow/v1/transport.grpc.pb.h"

namespace winnow {

class CacheRank;

// Exchange: one stream per channel. The channel lives as long as the stream: whichever ends first ends the other.
class TransportServiceImpl final : public v1::TransportService::CallbackService {
 public:
  explicit TransportServiceImpl(CacheRank* rank) : rank_(rank) {}

  grpc::ServerBidiReactor<v1::ExchangeRequest, v1::ExchangeResponse>* Exchange(
      grpc::CallbackServerContext* context) override;

 private:
  CacheRank* const rank_;
};

}  // namespace winnow
