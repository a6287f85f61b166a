#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "router/generation/generate_call.h"
#include "router/generation/served_model.h"
#include "router/generation/text_codec.h"
#include "winnow/v1/generation.grpc.pb.h"

namespace winnow {

// Generation as a gRPC service.
class GenerationService final : public v1::GenerationService::CallbackService {
 public:
  struct Options {
    // Of calls without a deadline, and the longest one.
    std::chrono::milliseconds default_timeout{std::chrono::minutes(10)};
    std::chrono::milliseconds max_timeout{std::chrono::hours(1)};
    // The model as it is served now; an error when no request can be served.
    std::function<absl::StatusOr<ServedModel>()> model;
    // Whose call it is; absent: TenantOf tells callers apart, and anybody may do anything.
    Authenticator authenticate = nullptr;
    // Called once per Generate call with its status; must not block. May be empty.
    std::function<void(absl::StatusCode)> on_end;
  };

  // `generation` and `codec` must outlive the server.
  GenerationService(Options options, Generation* generation, const TextCodec* codec);
  ~GenerationService() override;

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Resume(grpc::CallbackServerContext* context,
                                                         const v1::ResumeRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Fork(grpc::CallbackServerContext* context,
                                                       const v1::ForkRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;

 private:
  struct Calls;

  using Launch = std::function<void(GenerateCall& call)>;
  // A call of the tenant that is known by `id` while it lives; `launch` begins it. With `takes_over` the id may be that
  // of another call of the tenant, which may not have noticed yet that its client is gone.
  GenerateCall* NewCall(const std::string& id, const std::string& tenant, const Launch& launch,
                        bool takes_over = false);
  GenerateCall* RefusedCall(const absl::Status& status);
  absl::StatusOr<Caller> CallerOf(const grpc::CallbackServerContext& context) const;
  std::chrono::system_clock::time_point DeadlineOf(const grpc::CallbackServerContext& context) const;
  absl::StatusOr<GenerationInput> Parse(const v1::GenerateRequest& request, grpc::CallbackServerContext* context) const;

  const Options options_;
  Generation* const generation_;
  const TextCodec* const codec_;
  const std::shared_ptr<Calls> calls_;
};

}  // namespace winnow
