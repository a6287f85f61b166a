#pragma once
#include <functional>

#include "router/generation/served_model.h"
#include "router/generation/text_codec.h"
#include "router/keys/caller.h"
#include "winnow/v1/model.grpc.pb.h"
#include "winnow/v1/tokenizer.grpc.pb.h"

namespace winnow {

// The tokenizer as a gRPC service. Here and below `authenticate` says who may call it; absent: anybody.
class TokenizerService final : public v1::TokenizerService::CallbackService {
 public:
  // `codec` must outlive the server; ids at and above `vocab_size` are INVALID_ARGUMENT.
  TokenizerService(const TextCodec* codec, uint32_t vocab_size, Authenticator authenticate = nullptr)
      : codec_(codec), vocab_size_(vocab_size), authenticate_(std::move(authenticate)) {}

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  const TextCodec* const codec_;
  const uint32_t vocab_size_;
  const Authenticator authenticate_;
};

// The one model that is served.
class ModelService final : public v1::ModelService::CallbackService {
 public:
  explicit ModelService(std::function<ServedModel()> model, Authenticator authenticate = nullptr)
      : model_(std::move(model)), authenticate_(std::move(authenticate)) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;

 private:
  const std::function<ServedModel()> model_;
  const Authenticator authenticate_;
};

}  // namespace winnow
