#pragma once
#include <grpcpp/support/sync_stream.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tools/simulation/network/rpc.h"

// Streams whose calls block the thread that makes them, as gRPC's synchronous ones do.

namespace winnow::simulation {

// What has come to one end, and the thread that waits for it. It lives as long as its process, because events name it.
class StreamInbox {
 public:
  explicit StreamInbox(Runtime* runtime) : runtime_(runtime) {}

  void Take(std::string bytes) {
    if (over_) return;
    arrived_.push_back(std::move(bytes));
    WakeReader();
  }
  // Nothing comes any more; `drops`: nor is it to be read what has come.
  void End(bool drops) {
    over_ = true;
    if (drops) arrived_.clear();
    WakeReader();
  }
  bool over() const { return over_; }
  // The next message; nullopt at the end.
  std::optional<std::string> Next() {
    while (arrived_.empty() && !over_) Wait();
    if (arrived_.empty()) return std::nullopt;
    std::string bytes = std::move(arrived_.front());
    arrived_.pop_front();
    return bytes;
  }
  void AwaitEnd() {
    while (!over_) Wait();
  }

 private:
  void Wait() {
    reader_ = runtime_->running();
    runtime_->Block();
    reader_ = nullptr;
  }
  void WakeReader() {
    if (reader_ != nullptr) runtime_->Wake(reader_);
  }

  Runtime* const runtime_;
  std::deque<std::string> arrived_;
  bool over_ = false;
  Thread* reader_ = nullptr;
};

template <typename Request, typename Response>
class BlockingClientStream final : public grpc::ClientReaderWriterInterface<Request, Response> {
 public:
  BlockingClientStream(Rpc* rpc, const std::string& address, const char* method, grpc::ClientContext* context)
      : end_(new End(&rpc->runtime())),
        connection_(std::make_shared<StreamConnection>(rpc, rpc->runtime().running()->process, address, method, end_)) {
    rpc->streams[context] = connection_.get();
    rpc->network().Add(connection_);
    end_->connection = connection_;
    connection_->Open();
  }

  bool Write(const Request& request, grpc::WriteOptions) override {
    if (end_->inbox.over()) return false;
    connection_->SendToServer(request.SerializeAsString());
    return true;
  }
  bool Read(Response* response) override {
    const std::optional<std::string> bytes = end_->inbox.Next();
    return bytes.has_value() && response->ParseFromString(*bytes);
  }
  bool NextMessageSize(uint32_t* size) override {
    *size = UINT32_MAX;
    return true;
  }
  void WaitForInitialMetadata() override {}
  // A server that waits for it would wait for ever: the callers here cancel.
  bool WritesDone() override { return !end_->inbox.over(); }
  grpc::Status Finish() override {
    end_->inbox.AwaitEnd();
    return end_->status;
  }

 private:
  struct End final : ClientEnd {
    explicit End(Runtime* runtime) : inbox(runtime) {}
    void OnMessage(std::string bytes) override { inbox.Take(std::move(bytes)); }
    void OnStatus(const grpc::Status& s) override {
      if (inbox.over()) return;
      status = s;
      inbox.End(/*drops=*/s.error_code() == grpc::StatusCode::CANCELLED);
    }
    StreamInbox inbox;
    grpc::Status status;
    std::shared_ptr<StreamConnection> connection;
  };

  End* const end_;
  const std::shared_ptr<StreamConnection> connection_;
};

template <typename Request, typename Response>
class BlockingServerStream final : public grpc::ServerReaderWriterInterface<Response, Request>, public ServerEnd {
 public:
  explicit BlockingServerStream(StreamConnection& connection)
      : connection_(connection.shared_from_this()), inbox_(&connection.rpc().runtime()) {}

  void SendInitialMetadata() override {}
  bool Read(Request* request) override {
    const std::optional<std::string> bytes = inbox_.Next();
    return bytes.has_value() && request->ParseFromString(*bytes);
  }
  bool NextMessageSize(uint32_t* size) override {
    *size = UINT32_MAX;
    return true;
  }
  bool Write(const Response& response, grpc::WriteOptions) override {
    if (inbox_.over()) return false;
    connection_->SendToClient(response.SerializeAsString());
    return true;
  }
  void Finish(const grpc::Status& status) {
    connection_->FinishByServer(status);
    connection_->server_end = nullptr;
  }

  void OnMessage(std::string bytes) override { inbox_.Take(std::move(bytes)); }
  void OnCancel() override { inbox_.End(/*drops=*/true); }

 private:
  const std::shared_ptr<StreamConnection> connection_;
  StreamInbox inbox_;
};

// For Services::bidi, of a handler that reads and writes until it returns.
template <typename Request, typename Response>
Services::Bidi BlockingBidiHandler(
    std::function<grpc::Status(grpc::ServerContext*, grpc::ServerReaderWriterInterface<Response, Request>&)> handler) {
  return [handler = std::move(handler)](StreamConnection& connection) {
    auto* const stream = new BlockingServerStream<Request, Response>(connection);  // as long as the process
    connection.server_end = stream;
    connection.rpc().runtime().Spawn(connection.server, [stream, handler] {
      auto* const context = new grpc::ServerContext();
      stream->Finish(handler(context, *stream));
    });
  };
}

}  // namespace winnow::simulation
