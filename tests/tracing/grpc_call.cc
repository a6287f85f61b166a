// One gRPC call in its client's trace, as other people's clients make it: by metadata of the call.
//
// usage: grpc_call ADDRESS TRACEPARENT [TRACESTATE]
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>

#include "winnow/v1/generation.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const auto stub =
      winnow::v1::GenerationService::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  context.AddMetadata("traceparent", argv[2]);
  if (argc > 3) context.AddMetadata("tracestate", argv[3]);
  winnow::v1::GenerateRequest request;
  for (uint32_t id = 10; id < 200; ++id) request.mutable_token_ids()->add_ids(id);
  request.set_max_tokens(8);
  request.set_ignore_eos(true);
  const auto reader = stub->Generate(&context, request);
  winnow::v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.error_message().c_str());
  return status.ok() ? 0 : 1;
}
