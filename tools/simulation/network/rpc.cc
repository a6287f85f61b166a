#include "tools/simulation/network/rpc.h"

#include "common/base/check.h"

namespace winnow::simulation {
namespace {

// Opens a private member of a class of gRPC's: servers' contexts get their deadlines inside the library alone.
template <auto Member>
struct Opened {
  friend auto DeadlineOf(grpc::ServerContextBase& context) -> gpr_timespec& { return context.*Member; }
};
auto DeadlineOf(grpc::ServerContextBase& context) -> gpr_timespec&;

const grpc::Status& Unreachable() {
  static const grpc::Status status(grpc::StatusCode::UNAVAILABLE, "failed to connect to all addresses");
  return status;
}

const grpc::Status& Reset() {
  static const grpc::Status status(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  return status;
}

class PendingCall final : public Connection, public std::enable_shared_from_this<PendingCall> {
 public:
  PendingCall(Runtime* runtime, Process* client) : Connection(client, nullptr), runtime(runtime) {}

  void Finish(const grpc::Status& s, std::string bytes) {
    if (std::exchange(done, true)) return;
    status = s;
    response = std::move(bytes);
    runtime->Wake(waiter);
  }
  void Break() override {
    if (!client->dead) Finish(Reset(), "");
  }
  bool over() const override { return done; }

  Runtime* const runtime;
  Thread* waiter = nullptr;
  bool done = false;
  grpc::Status status;
  std::string response;
};

template struct Opened<&grpc::ServerContextBase::deadline_>;

}  // namespace

void Services::SetDeadline(grpc::ServerContextBase& context, std::chrono::system_clock::time_point deadline) {
  grpc::Timepoint2Timespec(deadline, &DeadlineOf(context));
}

Rpc* Rpc::current_ = nullptr;

Rpc::Rpc(Network* network) : network_(network) {
  current_ = this;
}

Rpc::~Rpc() {
  current_ = nullptr;
}

const Services* Rpc::Find(const Process* process) const {
  const auto found = services_.find(process);
  return found == services_.end() ? nullptr : found->second.get();
}

void Rpc::Cancel(grpc::ClientContext* context) {
  const auto found = streams.find(context);
  if (found != streams.end()) found->second->CancelByClient();
  const auto call = calls_.find(context);
  if (call != calls_.end()) call->second();
}

grpc::Status Rpc::Call(const std::string& address, grpc::ClientContext* context, const char* method,
                       const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response) {
  Runtime& runtime = this->runtime();
  Process* const self = runtime.running()->process;
  auto call = std::make_shared<PendingCall>(&runtime, self);
  call->waiter = runtime.running();
  network_->Add(call);
  const std::chrono::system_clock::time_point deadline = context->deadline();
  const bool has_deadline = deadline != std::chrono::system_clock::time_point::max();
  const Nanos left = has_deadline ? std::max<Nanos>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                           deadline - std::chrono::system_clock::now())
                                                           .count())
                                  : kNever;
  const Nanos until = has_deadline ? runtime.now() + left : kNever;

  auto there = std::make_shared<Pipe>(network_, self);
  auto arrive = [this, call, method, has_deadline, left, bytes = request.SerializeAsString()](Process* server) {
    const Services* const services = Find(server);
    const auto handler = services == nullptr ? decltype(services->unary.end()){} : services->unary.find(method);
    if (services == nullptr || handler == services->unary.end()) {
      return this->runtime().At(this->runtime().now() + network_->Latency(), call->client,
                                [call] { call->Finish(Unreachable(), ""); });
    }
    this->runtime().Spawn(server, [this, call, server, has_deadline, left, bytes, handle = handler->second] {
      // As in gRPC, what travels is the time that is left, and it counts from when the server reads that: one that was
      // stopped gives a call as much time as if it had just come.
      const auto deadline = has_deadline ? std::chrono::system_clock::now() + std::chrono::nanoseconds(left)
                                         : std::chrono::system_clock::time_point::max();
      handle(bytes, deadline, [this, call, server](const grpc::Status& status, const auto* answer) {
        auto back = std::make_shared<Pipe>(network_, server);
        back->Send(call->client, [call, status, text = status.ok() ? answer->SerializeAsString() : std::string()] {
          call->Finish(status, text);
        });
      });
    });
  };
  Process* const target = runtime.FindByAddress(address);
  if (target == nullptr) {
    runtime.At(runtime.now() + network_->Latency(), self, [call] { call->Finish(Unreachable(), ""); });
  } else {
    call->server = target;
    there->Send(target, [arrive, target] { arrive(target); });
  }
  calls_[context] = [call] { call->Finish(grpc::Status(grpc::StatusCode::CANCELLED, "Cancelled"), ""); };
  while (!call->done) {
    if (!runtime.Block(until) && !call->done) {
      call->done = true;
      call->status = grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded");
    }
  }
  calls_.erase(context);
  if (call->status.ok()) response->ParseFromString(call->response);
  return call->status;
}

StreamConnection::StreamConnection(Rpc* rpc, Process* client, std::string address, std::string method, ClientEnd* end)
    : Connection(client, nullptr),
      client_end(end),
      rpc_(rpc),
      address_(std::move(address)),
      method_(std::move(method)),
      to_server_(std::make_shared<Pipe>(&rpc->network(), client)) {}

void StreamConnection::Open() {
  Runtime& runtime = rpc_->runtime();
  Process* const target = runtime.FindByAddress(address_);
  const Services* const services = target == nullptr ? nullptr : rpc_->Find(target);
  if (services == nullptr || !services->bidi.contains(method_)) {
    broken_ = true;
    runtime.At(runtime.now() + rpc_->network().Latency(), client,
               [self = shared_from_this()] { self->client_end->OnStatus(Unreachable()); });
    return;
  }
  server = target;
  to_client_ = std::make_shared<Pipe>(&rpc_->network(), target);
  to_server_->Send(target, [self = shared_from_this(), handler = services->bidi.find(method_)->second] {
    if (self->over()) return;
    self->rpc_->runtime().Spawn(self->server, [self, handler] {
      handler(*self);
      for (std::string& bytes : std::exchange(self->early_, {})) self->server_end->OnMessage(std::move(bytes));
      if (self->cancelled_ && self->server_end != nullptr) self->server_end->OnCancel();
    });
  });
}

void StreamConnection::SendToServer(std::string bytes) {
  if (over() || server == nullptr) return;
  to_server_->Send(server, [self = shared_from_this(), bytes = std::move(bytes)]() mutable {
    if (self->broken_ || self->cancelled_) return;
    if (self->server_end == nullptr) {
      if (!self->finished_) self->early_.push_back(std::move(bytes));
      return;
    }
    self->server_end->OnMessage(std::move(bytes));
  });
}

void StreamConnection::SendToClient(std::string bytes) {
  if (over()) return;
  to_client_->Send(client, [self = shared_from_this(), bytes = std::move(bytes)]() mutable {
    if (!self->broken_) self->client_end->OnMessage(std::move(bytes));
  });
}

void StreamConnection::FinishByServer(const grpc::Status& status) {
  if (over()) return;
  finished_ = true;
  to_client_->Send(client, [self = shared_from_this(), status] {
    if (!self->broken_) self->client_end->OnStatus(status);
  });
}

void StreamConnection::CancelByClient() {
  if (broken_) return;
  client_end->OnStatus(grpc::Status::CANCELLED);
  if (server == nullptr || finished_) return;
  to_server_->Send(server, [self = shared_from_this()] {
    if (std::exchange(self->cancelled_, true)) return;
    if (self->server_end != nullptr) self->server_end->OnCancel();
  });
}

void StreamConnection::Break() {
  if (std::exchange(broken_, true)) return;
  Runtime& runtime = rpc_->runtime();
  const auto self = shared_from_this();
  runtime.At(runtime.now(), client, [self] { self->client_end->OnStatus(Reset()); });
  if (server == nullptr || finished_) return;
  runtime.At(runtime.now(), server, [self] {
    if (std::exchange(self->cancelled_, true)) return;
    if (self->server_end != nullptr) self->server_end->OnCancel();
  });
}

}  // namespace winnow::simulation
