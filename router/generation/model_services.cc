#include "router/generation/model_services.h"

#include "common/selection/spec_text.h"
#include "router/generation/grpc_caller.h"
#include "router/generation/grpc_error.h"
#include "router/generation/request_error.h"

namespace winnow {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToRichGrpc(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* TokenizerService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const absl::StatusOr<Caller> caller = CallerOfCall(*context, authenticate_);
  if (!caller.ok()) return Answer(context, caller.status());
  const bool add_special_tokens = !request->has_add_special_tokens() || request->add_special_tokens();
  const absl::StatusOr<std::vector<uint32_t>> ids = codec_->Encode(request->text(), add_special_tokens);
  if (!ids.ok()) return Answer(context, AnnotateField(ids.status(), "text"));
  response->mutable_ids()->Assign(ids->begin(), ids->end());
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* TokenizerService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const absl::StatusOr<Caller> caller = CallerOfCall(*context, authenticate_);
  if (!caller.ok()) return Answer(context, caller.status());
  for (const uint32_t id : request->ids()) {
    if (id < vocab_size_) continue;
    return Answer(
        context, InvalidField("ids", absl::StrCat("ids: token id ", id, " is not in the vocabulary of ", vocab_size_)));
  }
  response->set_text(codec_->Decode({request->ids().begin(), request->ids().end()}, request->skip_special_tokens()));
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ModelService::ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest*,
                                                   v1::ListModelsResponse* response) {
  const absl::StatusOr<Caller> caller = CallerOfCall(*context, authenticate_);
  if (!caller.ok()) return Answer(context, caller.status());
  const ServedModel model = model_();
  v1::Model* out = response->add_models();
  out->set_id(model.id);
  out->set_max_context_tokens(model.max_context_tokens);
  out->set_vocab_size(model.vocab_size);
  out->set_selection_preset(model.default_selection.preset);
  out->set_max_budget_tokens(model.max_budget_tokens);
  out->set_selection(SpecText(model.default_selection));
  return Answer(context, absl::OkStatus());
}

}  // namespace winnow
