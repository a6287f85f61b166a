#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "cache_rank/service/cache_rank.h"

namespace winnow::test {

// A cache rank behind a gRPC server.
struct ServedCacheRank {
  ServedCacheRank(const std::string& name, uint64_t incarnation, size_t memory_bytes) {
    CacheRank::Options options;
    options.identity.set_rank(name);
    options.identity.set_incarnation(incarnation);
    options.data_plane.memory_bytes = memory_bytes;
    options.tick = std::chrono::milliseconds(5);
    rank = std::make_unique<CacheRank>(options, CpuKernels("portable").value(),
                                       NewInprocTransport({.incarnation = incarnation}));
    rank->Start();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    for (grpc::Service* service : rank->services()) builder.RegisterService(service);
    server = builder.BuildAndStart();
    identity = options.identity;
    identity.set_address(absl::StrCat("127.0.0.1:", port));
  }
  ~ServedCacheRank() {
    rank->Stop();
    server->Shutdown();
  }
  CacheRankSnapshot Snapshot() const { return rank->metrics().Snapshot(); }

  std::unique_ptr<CacheRank> rank;
  std::unique_ptr<grpc::Server> server;
  v1::Identity identity;
};

}  // namespace winnow::test
