#include "router/generation/generation_service.h"

#include <algorithm>
#include <random>

#include "common/rpc/trace_carriers.h"
#include "router/generation/caller_model.h"
#include "router/generation/generate_request.h"
#include "router/generation/grpc_caller.h"
#include "router/generation/grpc_error.h"
#include "router/generation/request_checks.h"
#include "router/generation/request_error.h"

namespace winnow {
namespace {

using SystemClock = std::chrono::system_clock;

// Ids of calls that have ended, for which Abort is no error.
constexpr size_t kRememberedCalls = 4096;

std::string NewRequestId() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return absl::StrCat("gen-", absl::Hex(random(), absl::kZeroPad16));
}

}  // namespace

// The calls under way by request id.
struct GenerationService::Calls {
  struct Active {
    std::weak_ptr<GenerateCall> call;
    std::string tenant;
  };
  std::mutex mutex;
  std::unordered_map<std::string, Active> active;
  std::unordered_set<std::string> ended;
  std::deque<std::string> ended_order;  // oldest first

  absl::Status Add(const std::string& id, const std::string& tenant, const std::shared_ptr<GenerateCall>& call,
                   bool takes_over) {
    std::lock_guard lock(mutex);
    const auto [it, is_new] = active.try_emplace(id, Active{call, tenant});
    if (is_new) return absl::OkStatus();
    if (takes_over && it->second.tenant == tenant) {
      it->second.call = call;
      return absl::OkStatus();
    }
    return WithField(
        absl::AlreadyExistsError(absl::StrCat("request_id: a request with the id \"", id, "\" is under way")),
        "request_id", "already_exists");
  }

  // Of a call that is gone.
  void Remove(const std::string& id, const GenerateCall* call) {
    std::lock_guard lock(mutex);
    const auto it = active.find(id);
    // Another call has taken its place.
    if (it == active.end() || it->second.call.lock().get() != call) return;
    active.erase(it);
    if (!ended.insert(id).second) return;
    ended_order.push_back(id);
    if (ended_order.size() <= kRememberedCalls) return;
    ended.erase(ended_order.front());
    ended_order.pop_front();
  }

  std::shared_ptr<GenerateCall> Find(const std::string& id) {
    std::lock_guard lock(mutex);
    const auto it = active.find(id);
    return it == active.end() ? nullptr : it->second.call.lock();
  }

  // Only what is the tenant's.
  absl::Status Abort(const std::string& id, const std::string& tenant) {
    std::shared_ptr<GenerateCall> call;
    {
      std::lock_guard lock(mutex);
      if (const auto it = active.find(id); it != active.end() && it->second.tenant == tenant) {
        call = it->second.call.lock();
      } else if (!ended.contains(id)) {
        return absl::NotFoundError(absl::StrCat("no request has the id \"", id, "\""));
      }
    }
    if (call) call->Stop(absl::CancelledError("the request was aborted"));
    return absl::OkStatus();
  }
};

GenerationService::GenerationService(Options options, Generation* generation, const TextCodec* codec)
    : options_(std::move(options)), generation_(generation), codec_(codec), calls_(std::make_shared<Calls>()) {}

GenerationService::~GenerationService() = default;

absl::StatusOr<GenerationInput> GenerationService::Parse(const v1::GenerateRequest& request,
                                                         grpc::CallbackServerContext* context) const {
  WINNOW_ASSIGN_OR_RETURN(Caller caller, CallerOf(*context));
  WINNOW_ASSIGN_OR_RETURN(ServedModel model, options_.model());
  model = ModelFor(caller, std::move(model));
  WINNOW_ASSIGN_OR_RETURN(GenerationInput input, ParseGenerateRequest(request, model, *codec_));
  if (caller.account != nullptr) {
    WINNOW_RETURN_IF_ERROR(caller.account->CheckModel(request.has_model() ? request.model() : model.id));
  }
  input.caller = std::move(caller);
  if (input.request_id.empty()) input.request_id = NewRequestId();
  input.deadline = DeadlineOf(*context);
  input.trace_parent = TraceOf(*context);
  if (request.has_messages()) input.operation = "chat";
  return input;
}

absl::StatusOr<Caller> GenerationService::CallerOf(const grpc::CallbackServerContext& context) const {
  return CallerOfCall(context, options_.authenticate);
}

SystemClock::time_point GenerationService::DeadlineOf(const grpc::CallbackServerContext& context) const {
  const auto now = SystemClock::now();
  const bool has_deadline = context.deadline() != SystemClock::time_point::max();
  return has_deadline ? std::min(context.deadline(), now + options_.max_timeout) : now + options_.default_timeout;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                                            const v1::GenerateRequest* request) {
  absl::StatusOr<GenerationInput> input = Parse(*request, context);
  if (!input.ok()) return RefusedCall(input.status());
  const std::string id = input->request_id, tenant = input->caller.tenant;
  return NewCall(id, tenant, [&](GenerateCall& call) { call.Begin(generation_, *std::move(input)); });
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Resume(grpc::CallbackServerContext* context,
                                                                          const v1::ResumeRequest* request) {
  absl::StatusOr<GenerationInput> input = Parse(request->request(), context);
  if (!input.ok()) return RefusedCall(input.status());
  input->resumable = true;
  input->resume.emplace().token = request->resume_token();
  std::vector<ClientPosition> positions;
  for (const v1::OutputPosition& position : request->positions()) {
    input->resume->next_index.push_back(position.next_index());
    positions.emplace_back(position.next_index(),
                           position.has_text_bytes() ? std::optional<uint64_t>(position.text_bytes()) : std::nullopt);
  }
  const std::string id = input->request_id, tenant = input->caller.tenant;
  return NewCall(
      id, tenant, [&](GenerateCall& call) { call.Begin(generation_, *std::move(input), std::move(positions)); },
      /*takes_over=*/true);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Fork(grpc::CallbackServerContext* context,
                                                                        const v1::ForkRequest* request) {
  absl::StatusOr<Caller> caller = CallerOf(*context);
  if (!caller.ok()) return RefusedCall(caller.status());
  const std::shared_ptr<GenerateCall> source = calls_->Find(request->source_request_id());
  absl::Status status = CheckRequestId(request->request_id());
  if (status.ok() && source == nullptr) {
    status = absl::NotFoundError(
        absl::StrCat("source_request_id: no request has the id \"", request->source_request_id(), "\""));
  }
  if (!status.ok()) return RefusedCall(status);
  ForkInput input;
  input.output_index = request->output_index();
  input.caller = *std::move(caller);
  input.deadline = DeadlineOf(*context);
  if (request->has_sample_index()) input.sample_index = request->sample_index();
  if (request->has_max_tokens()) input.max_tokens = request->max_tokens();
  const std::string id = request->request_id().empty() ? NewRequestId() : request->request_id();
  return NewCall(id, input.caller.tenant, [&](GenerateCall& call) { call.BeginFork(*source, id, input); });
}

GenerateCall* GenerationService::RefusedCall(const absl::Status& status) {
  return NewCall("", "", [&](GenerateCall& call) { call.Refuse(status); });
}

GenerateCall* GenerationService::NewCall(const std::string& id, const std::string& tenant, const Launch& launch,
                                         bool takes_over) {
  const auto on_end = [this](absl::StatusCode code) {
    if (options_.on_end) options_.on_end(code);
  };
  auto registered = std::make_shared<const GenerateCall*>(nullptr);
  const auto call = std::make_shared<GenerateCall>(on_end, [calls = calls_, id, registered] {
    if (*registered != nullptr) calls->Remove(id, *registered);
  });
  const absl::Status status = id.empty() ? absl::OkStatus() : calls_->Add(id, tenant, call, takes_over);
  if (status.ok()) {
    if (!id.empty()) *registered = call.get();
    launch(*call);
  } else {
    call->Refuse(status);
  }
  return call.get();
}

grpc::ServerUnaryReactor* GenerationService::Abort(grpc::CallbackServerContext* context,
                                                   const v1::AbortRequest* request, v1::AbortResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::StatusOr<Caller> caller = CallerOf(*context);
  absl::Status status = caller.status();
  if (status.ok()) {
    status = request->resume_token().empty() ? calls_->Abort(request->request_id(), caller->tenant)
                                             : generation_->Abort(request->resume_token(), *caller);
  }
  reactor->Finish(ToRichGrpc(status));
  return reactor;
}

}  // namespace winnow
