#pragma once
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "google/protobuf/message_lite.h"
#include "tools/simulation/network/network.h"

// gRPC over the simulated network. Generated stubs end here instead of in gRPC's core (stubs.cc), and the services of
// the product are called from here: messages travel as bytes, callbacks run in threads of their processes, one call's
// reactions in gRPC's order.

namespace winnow::simulation {

// What answers to an address.
class Services {
 public:
  using Answer = std::function<void(const grpc::Status&, const google::protobuf::MessageLite*)>;
  // In a thread of the server. `answer` may be called later, from any of its threads.
  using Unary = std::function<void(const std::string& request, std::chrono::system_clock::time_point deadline, Answer)>;
  // Begins a stream; in a thread of the server.
  using Bidi = std::function<void(class StreamConnection&)>;

  std::map<std::string, Unary, std::less<>> unary;
  std::map<std::string, Bidi, std::less<>> bidi;

  // A blocking handler of a service.
  template <typename Service, typename Request, typename Response>
  void AddBlocking(std::string method, Service* service,
                   grpc::Status (Service::*handler)(grpc::ServerContext*, const Request*, Response*)) {
    unary[std::move(method)] = [service, handler](const std::string& bytes, auto deadline, const Answer& answer) {
      Request request;
      Response response;
      request.ParseFromString(bytes);
      grpc::ServerContext context;
      SetDeadline(context, deadline);
      const grpc::Status status = (service->*handler)(&context, &request, &response);
      answer(status, &response);
    };
  }

 private:
  static void SetDeadline(grpc::ServerContextBase& context, std::chrono::system_clock::time_point deadline);
};

// The RPCs of the whole cluster.
class Rpc {
 public:
  explicit Rpc(Network* network);
  ~Rpc();
  static Rpc* current() { return current_; }

  Network& network() { return *network_; }
  Runtime& runtime() { return network_->runtime(); }
  void Serve(Process* process, std::unique_ptr<Services> services) { services_[process] = std::move(services); }
  const Services* Find(const Process* process) const;

  // Blocks the running thread.
  grpc::Status Call(const std::string& address, grpc::ClientContext* context, const char* method,
                    const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response);
  void Cancel(grpc::ClientContext* context);

  std::unordered_map<grpc::ClientContext*, class StreamConnection*> streams;  // that have not ended

 private:
  static Rpc* current_;
  Network* const network_;
  std::unordered_map<grpc::ClientContext*, std::function<void()>> calls_;  // what cancels each that is under way
  std::unordered_map<const Process*, std::unique_ptr<Services>> services_;
};

// The two ends of a stream, whatever its messages.
class ClientEnd {
 public:
  virtual ~ClientEnd() = default;
  virtual void OnMessage(std::string bytes) = 0;
  virtual void OnStatus(const grpc::Status& status) = 0;
};
class ServerEnd {
 public:
  virtual ~ServerEnd() = default;
  virtual void OnMessage(std::string bytes) = 0;
  virtual void OnCancel() = 0;
};

class StreamConnection final : public Connection, public std::enable_shared_from_this<StreamConnection> {
 public:
  StreamConnection(Rpc* rpc, Process* client, std::string address, std::string method, ClientEnd* client_end);

  void Open();
  void SendToServer(std::string bytes);
  void SendToClient(std::string bytes);
  void FinishByServer(const grpc::Status& status);
  void CancelByClient();
  void Break() override;
  bool over() const override { return broken_ || finished_; }
  Rpc& rpc() { return *rpc_; }

  ClientEnd* const client_end;
  ServerEnd* server_end = nullptr;

 private:
  void Arrived(Process* to);

  Rpc* const rpc_;
  const std::string address_;
  const std::string method_;
  const std::shared_ptr<Pipe> to_server_;
  std::shared_ptr<Pipe> to_client_;
  std::deque<std::string> early_;  // arrived before the handler was called
  bool cancelled_ = false;         // the server's end has been told
  bool broken_ = false;
  bool finished_ = false;
};

template <typename Request, typename Response>
class ClientStream final : public grpc::ClientCallbackReaderWriter<Request, Response>, public ClientEnd {
 public:
  ClientStream(Rpc* rpc, const std::string& address, const char* method, grpc::ClientContext* context,
               grpc::ClientBidiReactor<Request, Response>* reactor)
      : rpc_(rpc), process_(rpc->runtime().running()->process), context_(context), reactor_(reactor) {
    connection_ = std::make_shared<StreamConnection>(rpc, process_, address, method, this);
    rpc->streams[context] = connection_.get();
    rpc->network().Add(connection_);
    this->BindReactor(reactor);
  }

  void StartCall() override {
    started_ = true;
    connection_->Open();
    for (std::string& bytes : early_) connection_->SendToServer(std::move(bytes));
    early_.clear();
    MaybeDone();
  }
  void WritesDone() override {}
  void Write(const Request* request, grpc::WriteOptions) override {
    ++operations_;
    const bool ok = !status_.has_value();
    if (ok && started_) connection_->SendToServer(request->SerializeAsString());
    if (ok && !started_) early_.push_back(request->SerializeAsString());
    React([this, ok] { reactor_->OnWriteDone(ok); });
  }
  void Read(Response* response) override {
    ++operations_;
    reading_ = response;
    Pump();
  }
  void AddHold(int holds) override { operations_ += holds; }
  void RemoveHold() override {
    --operations_;
    MaybeDone();
  }

  void OnMessage(std::string bytes) override {
    if (status_.has_value()) return;
    arrived_.push_back(std::move(bytes));
    Pump();
  }
  void OnStatus(const grpc::Status& status) override {
    if (status_.has_value()) return;
    status_ = status;
    if (status.error_code() == grpc::StatusCode::CANCELLED) arrived_.clear();
    Pump();
    MaybeDone();
  }

 private:
  void React(std::function<void()> reaction) {
    rpc_->runtime().Spawn(process_, [this, reaction = std::move(reaction)] {
      reaction();
      --operations_;
      MaybeDone();
    });
  }
  void Pump() {
    if (reading_ == nullptr || (arrived_.empty() && !status_.has_value())) return;
    const bool ok = !arrived_.empty();
    if (ok) {
      reading_->ParseFromString(arrived_.front());
      arrived_.pop_front();
    }
    reading_ = nullptr;
    React([this, ok] { reactor_->OnReadDone(ok); });
  }
  void MaybeDone() {
    if (!status_.has_value() || !started_ || operations_ > 0 || done_) return;
    done_ = true;
    rpc_->streams.erase(context_);
    rpc_->runtime().Spawn(process_, [this] { reactor_->OnDone(*status_); });
  }

  Rpc* const rpc_;
  Process* const process_;
  grpc::ClientContext* const context_;
  grpc::ClientBidiReactor<Request, Response>* const reactor_;
  std::shared_ptr<StreamConnection> connection_;
  std::deque<std::string> early_, arrived_;
  Response* reading_ = nullptr;
  int operations_ = 0;
  bool started_ = false;
  bool done_ = false;
  std::optional<grpc::Status> status_;
};

template <typename Request, typename Response>
class ServerStream final : public grpc::ServerCallbackReaderWriter<Request, Response>, public ServerEnd {
 public:
  ServerStream(StreamConnection& connection, grpc::ServerBidiReactor<Request, Response>* reactor)
      : connection_(connection.shared_from_this()), reactor_(reactor) {
    this->BindReactor(reactor);
  }

  void SendInitialMetadata() override {}
  void Finish(grpc::Status status) override {
    finished_ = true;
    connection_->FinishByServer(status);
    Pump();
    MaybeDone();
  }
  void Read(Request* request) override {
    ++operations_;
    reading_ = request;
    Pump();
  }
  void Write(const Response* response, grpc::WriteOptions) override {
    ++operations_;
    const bool ok = !cancelled_ && !finished_;
    if (ok) connection_->SendToClient(response->SerializeAsString());
    React([this, ok] { reactor_->OnWriteDone(ok); });
  }
  void WriteAndFinish(const Response* response, grpc::WriteOptions, grpc::Status status) override {
    connection_->SendToClient(response->SerializeAsString());
    Finish(status);
  }

  void OnMessage(std::string bytes) override {
    if (cancelled_) return;
    arrived_.push_back(std::move(bytes));
    Pump();
  }
  void OnCancel() override {
    if (std::exchange(cancelled_, true)) return;
    arrived_.clear();
    Pump();
    ++operations_;
    React([this] { reactor_->OnCancel(); });
  }

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}
  void React(std::function<void()> reaction) {
    connection_->rpc().runtime().Spawn(connection_->server, [this, reaction = std::move(reaction)] {
      reaction();
      --operations_;
      MaybeDone();
    });
  }
  void Pump() {
    const bool over = cancelled_ || finished_;
    if (reading_ == nullptr || (arrived_.empty() && !over)) return;
    const bool ok = !arrived_.empty() && !finished_;
    if (ok) {
      reading_->ParseFromString(arrived_.front());
      arrived_.pop_front();
    }
    reading_ = nullptr;
    React([this, ok] { reactor_->OnReadDone(ok); });
  }
  void MaybeDone() {
    if (!finished_ || operations_ > 0 || std::exchange(done_, true)) return;
    connection_->server_end = nullptr;
    connection_->rpc().runtime().Spawn(connection_->server, [this] { reactor_->OnDone(); });
  }

  const std::shared_ptr<StreamConnection> connection_;
  grpc::ServerBidiReactor<Request, Response>* const reactor_;
  std::deque<std::string> arrived_;
  Request* reading_ = nullptr;
  int operations_ = 0;
  bool finished_ = false;
  bool cancelled_ = false;
  bool done_ = false;
};

// For Services::bidi, of a handler that returns a reactor.
template <typename Request, typename Response>
Services::Bidi BidiHandler(
    std::function<grpc::ServerBidiReactor<Request, Response>*(grpc::CallbackServerContext*)> handler) {
  return [handler = std::move(handler)](StreamConnection& connection) {
    auto* const context = new grpc::CallbackServerContext();  // as long as the process
    grpc::ServerBidiReactor<Request, Response>* const reactor = handler(context);
    connection.server_end = new ServerStream<Request, Response>(connection, reactor);
  };
}

// Of a callback service's unary method.
template <typename Request, typename Response>
Services::Unary UnaryHandler(
    std::function<grpc::ServerUnaryReactor*(grpc::CallbackServerContext*, const Request*, Response*)> handler) {
  struct Call final : public grpc::ServerCallbackUnary {
    grpc::CallbackServerContext context;
    Request request;
    Response response;
    Services::Answer answer;
    grpc::ServerUnaryReactor* bound = nullptr;
    void Bind(grpc::ServerUnaryReactor* reactor) {
      bound = reactor;
      this->BindReactor(reactor);
    }
    void Finish(grpc::Status status) override { answer(status, &response); }
    void SendInitialMetadata() override {}
    grpc::internal::ServerReactor* reactor() override { return bound; }
    void CallOnDone() override {}
  };
  return [handler = std::move(handler)](const std::string& bytes, auto, const Services::Answer& answer) {
    auto* const call = new Call();  // as long as the process
    call->request.ParseFromString(bytes);
    call->answer = answer;
    call->Bind(handler(&call->context, &call->request, &call->response));
  };
}

}  // namespace winnow::simulation
