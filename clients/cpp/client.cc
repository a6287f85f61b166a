#include "clients/cpp/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "winnow/v1/admin.grpc.pb.h"
#include "winnow/v1/generation.grpc.pb.h"
#include "winnow/v1/model.grpc.pb.h"
#include "winnow/v1/tokenizer.grpc.pb.h"

namespace winnow {
namespace {

// gRPC's own words for a refused connection name no server; a server that cannot serve at the moment says why itself.
absl::Status StatusOf(const grpc::Status& status, const std::string& address) {
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
      status.error_message().find("failed to connect") != std::string::npos) {
    if (status.error_message().find("Connection refused") != std::string::npos) {
      return absl::UnavailableError(absl::StrCat("there is no server at ", address, "; is `winnow up` running?"));
    }
    return absl::UnavailableError(absl::StrCat("cannot connect to ", address, ": ", status.error_message()));
  }
  return FromGrpc(status);
}

// What an event adds to the answer that is being read.
void Add(const v1::GenerateResponse& event, GeneratedAnswer& answer) {
  const auto output = [&answer](uint32_t index) -> GeneratedOutput& {
    if (answer.outputs.size() <= index) answer.outputs.resize(index + 1);
    return answer.outputs[index];
  };
  if (event.has_accepted()) answer.accepted = event.accepted();
  if (event.has_delta()) {
    GeneratedOutput& to = output(event.delta().output_index());
    to.text += event.delta().text();
    for (const v1::Token& token : event.delta().tokens()) to.token_ids.push_back(token.id());
  }
  if (event.has_output_finished()) {
    const v1::GenerateResponse::OutputFinished& end = event.output_finished();
    GeneratedOutput& to = output(end.output_index());
    to.reason = end.reason();
    if (end.has_stop_match()) to.stop_match = end.stop_match();
    to.selection = end.selection();
  }
  if (event.has_usage()) answer.usage = event.usage();
}

}  // namespace

v1::GenerateRequest TextRequest(std::string text) {
  v1::GenerateRequest request;
  request.set_text(std::move(text));
  return request;
}

v1::GenerateRequest TokensRequest(const std::vector<uint32_t>& ids) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  return request;
}

v1::GenerateRequest ChatRequest(const std::vector<std::pair<std::string, std::string>>& roles_and_contents) {
  v1::GenerateRequest request;
  v1::Messages* const list = request.mutable_messages();
  for (const auto& [role, content] : roles_and_contents) {
    v1::Message* const message = list->add_messages();
    message->set_role(role);
    message->set_content(content);
  }
  return request;
}

struct Client::Connection {
  Connection(std::string name, std::string api_key, const std::shared_ptr<grpc::Channel>& channel)
      : name(std::move(name)),
        api_key(std::move(api_key)),
        generation(v1::GenerationService::NewStub(channel)),
        tokenizer(v1::TokenizerService::NewStub(channel)),
        models(v1::ModelService::NewStub(channel)),
        admin(v1::AdminService::NewStub(channel)) {}

  void Prepare(grpc::ClientContext& context, std::chrono::milliseconds timeout) const {
    if (!api_key.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", api_key));
    if (timeout.count() > 0) SetTimeout(context, timeout);
  }

  // A call with one answer: `method` of `stub`.
  template <class Response, class Stub, class Method, class Request>
  absl::StatusOr<Response> Ask(Stub& stub, Method method, const Request& request,
                               std::chrono::milliseconds timeout) const {
    grpc::ClientContext context;
    Prepare(context, timeout);
    Response response;
    WINNOW_RETURN_IF_ERROR(StatusOf((stub.*method)(&context, request, &response), name));
    return response;
  }

  const std::string name;
  const std::string api_key;
  const std::unique_ptr<v1::GenerationService::Stub> generation;
  const std::unique_ptr<v1::TokenizerService::Stub> tokenizer;
  const std::unique_ptr<v1::ModelService::Stub> models;
  const std::unique_ptr<v1::AdminService::Stub> admin;
};

struct AnswerStream::Call {
  using Reader = std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>;

  // `start` begins the call on the stubs of `connection`.
  template <class Start>
  Call(std::shared_ptr<const Client::Connection> to, std::chrono::milliseconds timeout, Start start)
      : connection(std::move(to)) {
    connection->Prepare(context, timeout);
    reader = start(*connection->generation, &context);
  }
  ~Call() {
    if (status) return;
    context.TryCancel();
    Finish();
  }

  const absl::Status& Finish() {
    if (status) return *status;
    for (v1::GenerateResponse rest; reader->Read(&rest);) {
    }
    status = StatusOf(reader->Finish(), connection->name);
    return *status;
  }

  const std::shared_ptr<const Client::Connection> connection;
  grpc::ClientContext context;
  Reader reader;
  std::optional<absl::Status> status;  // once it has ended
};

AnswerStream::AnswerStream(std::unique_ptr<Call> call) : call_(std::move(call)) {}
AnswerStream::AnswerStream(AnswerStream&&) noexcept = default;
AnswerStream& AnswerStream::operator=(AnswerStream&&) noexcept = default;
AnswerStream::~AnswerStream() = default;

bool AnswerStream::Read(v1::GenerateResponse& event) {
  return !call_->status && call_->reader->Read(&event);
}

absl::Status AnswerStream::Finish() {
  return call_->Finish();
}

absl::StatusOr<GeneratedAnswer> AnswerStream::ReadAll(const std::function<void(const std::string&)>& on_text) {
  GeneratedAnswer answer;
  for (v1::GenerateResponse event; Read(event);) {
    Add(event, answer);
    const bool has_text = event.has_delta() && event.delta().output_index() == 0 && !event.delta().text().empty();
    if (on_text && has_text) on_text(event.delta().text());
  }
  WINNOW_RETURN_IF_ERROR(Finish());
  return answer;
}

void AnswerStream::Cancel() {
  call_->context.TryCancel();
}

absl::StatusOr<Client> Client::Connect(std::string address, ClientOptions options) {
  Credentials credentials;
  const TlsFiles files{.certificate = options.tls_cert, .key = options.tls_key, .authorities = options.tls_ca};
  if (!files.empty()) {
    WINNOW_ASSIGN_OR_RETURN(credentials, Credentials::Load(files));
  }
  const std::shared_ptr<grpc::Channel> channel = NewChannel(address, credentials);
  return Client(channel, std::move(options), std::move(address));
}

Client::Client(const std::shared_ptr<grpc::Channel>& channel, ClientOptions options, std::string name)
    : connection_(std::make_shared<Connection>(std::move(name), std::move(options.api_key), channel)),
      timeout_(options.timeout) {}

Client Client::WithTimeout(std::chrono::milliseconds timeout) const {
  Client other(*this);
  other.timeout_ = timeout;
  return other;
}

AnswerStream Client::Generate(const v1::GenerateRequest& request) const {
  return AnswerStream(std::make_unique<AnswerStream::Call>(
      connection_, timeout_, [&](auto& stub, auto* context) { return stub.Generate(context, request); }));
}

AnswerStream Client::Resume(const v1::ResumeRequest& request) const {
  return AnswerStream(std::make_unique<AnswerStream::Call>(
      connection_, timeout_, [&](auto& stub, auto* context) { return stub.Resume(context, request); }));
}

AnswerStream Client::Fork(const v1::ForkRequest& request) const {
  return AnswerStream(std::make_unique<AnswerStream::Call>(
      connection_, timeout_, [&](auto& stub, auto* context) { return stub.Fork(context, request); }));
}

absl::Status Client::Abort(const std::string& request_id) const {
  v1::AbortRequest request;
  request.set_request_id(request_id);
  return connection_
      ->Ask<v1::AbortResponse>(*connection_->generation, &v1::GenerationService::Stub::Abort, request, timeout_)
      .status();
}

absl::StatusOr<std::vector<uint32_t>> Client::Tokenize(const std::string& text, bool add_special_tokens) const {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(add_special_tokens);
  WINNOW_ASSIGN_OR_RETURN(const v1::TokenizeResponse response,
                          connection_->Ask<v1::TokenizeResponse>(
                              *connection_->tokenizer, &v1::TokenizerService::Stub::Tokenize, request, timeout_));
  return std::vector<uint32_t>(response.ids().begin(), response.ids().end());
}

absl::StatusOr<std::string> Client::Detokenize(const std::vector<uint32_t>& ids, bool skip_special_tokens) const {
  v1::DetokenizeRequest request;
  request.mutable_ids()->Add(ids.begin(), ids.end());
  request.set_skip_special_tokens(skip_special_tokens);
  WINNOW_ASSIGN_OR_RETURN(const v1::DetokenizeResponse response,
                          connection_->Ask<v1::DetokenizeResponse>(
                              *connection_->tokenizer, &v1::TokenizerService::Stub::Detokenize, request, timeout_));
  return response.text();
}

absl::StatusOr<std::vector<v1::Model>> Client::ListModels() const {
  WINNOW_ASSIGN_OR_RETURN(
      const v1::ListModelsResponse response,
      connection_->Ask<v1::ListModelsResponse>(*connection_->models, &v1::ModelService::Stub::ListModels,
                                               v1::ListModelsRequest(), timeout_));
  return std::vector<v1::Model>(response.models().begin(), response.models().end());
}

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo() const {
  return connection_->Ask<v1::GetServerInfoResponse>(*connection_->admin, &v1::AdminService::Stub::GetServerInfo,
                                                     v1::GetServerInfoRequest(), timeout_);
}

}  // namespace winnow
