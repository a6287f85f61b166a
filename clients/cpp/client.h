#pragma once
// A client of a Winnow server, for its gRPC port. Requests and answers are the messages of winnow/v1/generation.proto,
// where each field is described.
//
//   absl::StatusOr<winnow::Client> client = winnow::Client::Connect("127.0.0.1:8001");
//   winnow::AnswerStream stream = client->Generate(winnow::ChatRequest({{"user", "Why is the sky blue?"}}));
//   winnow::v1::GenerateResponse event;
//   while (stream.Read(event)) std::cout << event.delta().text() << std::flush;
//   if (absl::Status status = stream.Finish(); !status.ok()) std::cerr << status << "\n";

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "winnow/v1/admin.pb.h"
#include "winnow/v1/generation.pb.h"
#include "winnow/v1/model.pb.h"

namespace grpc {
class Channel;
}

namespace winnow {

struct ClientOptions {
  std::string api_key = {};              // of a server with keys
  std::chrono::milliseconds timeout{0};  // of each call, from its begin to the end of its answer; 0: the server's

  // Files (PEM) for a server with TLS; with none of them nothing is encrypted.
  std::string tls_ca = {};    // certificates of those who sign the server's
  std::string tls_cert = {};  // the client's own, and its key, for calls that need one
  std::string tls_key = {};
};

// A request with one kind of input; everything else is set on the message.
v1::GenerateRequest TextRequest(std::string text);  // as it is, without the model's chat template
v1::GenerateRequest TokensRequest(const std::vector<uint32_t>& ids);
v1::GenerateRequest ChatRequest(const std::vector<std::pair<std::string, std::string>>& roles_and_contents);

// One whole answer.
struct GeneratedOutput {
  std::string text;
  std::vector<uint32_t> token_ids;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  std::optional<std::string> stop_match;  // the stop string that ended it
  v1::SelectionStats selection;           // what the selection of KV rows did
};
struct GeneratedAnswer {
  v1::GenerateResponse::Accepted accepted;
  std::vector<GeneratedOutput> outputs;  // as many as the request's n
  v1::GenerateResponse::Usage usage;
};

// An answer under way: Accepted, then Deltas and an OutputFinished per output, then Usage. Destroying it before its end
// cancels the request. For one thread at a time; Cancel may come from any.
class AnswerStream {
 public:
  AnswerStream(AnswerStream&&) noexcept;
  AnswerStream& operator=(AnswerStream&&) noexcept;
  ~AnswerStream();

  // Waits for the next event; false at the end.
  bool Read(v1::GenerateResponse& event);
  // How the answer ended, once Read was false; events that nobody has read are dropped.
  absl::Status Finish();
  // Reads the rest of the answer. `on_text` gets output 0 piece by piece.
  absl::StatusOr<GeneratedAnswer> ReadAll(const std::function<void(const std::string& text)>& on_text = nullptr);
  // Ends the request at the server; Finish says CANCELLED.
  void Cancel();

 private:
  friend class Client;
  struct Call;
  explicit AnswerStream(std::unique_ptr<Call> call);
  std::unique_ptr<Call> call_;
};

// Errors have the server's code and its words; UNAVAILABLE where there is no server, DEADLINE_EXCEEDED after `timeout`.
// Thread-safe. Copies share a connection, which is made with the first call, and again when it is lost.
class Client {
 public:
  // `address` is "host:port" of the server's gRPC port. INVALID_ARGUMENT when a TLS file cannot be used.
  static absl::StatusOr<Client> Connect(std::string address, ClientOptions options = {});
  // Over a channel of the caller's, which has TLS or not; `name` is the server's in errors.
  explicit Client(const std::shared_ptr<grpc::Channel>& channel, ClientOptions options = {},
                  std::string name = "the other end of the channel");

  // The same connection with another timeout.
  Client WithTimeout(std::chrono::milliseconds timeout) const;

  AnswerStream Generate(const v1::GenerateRequest& request) const;
  // The rest of an answer whose stream or server was lost, of a request that was resumable. Any server of the cluster.
  AnswerStream Resume(const v1::ResumeRequest& request) const;
  // Goes on from the current token of an answer under way, with random numbers of its own.
  AnswerStream Fork(const v1::ForkRequest& request) const;
  // Cancels a request by the id that its Accepted carried.
  absl::Status Abort(const std::string& request_id) const;

  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text, bool add_special_tokens = true) const;
  absl::StatusOr<std::string> Detokenize(const std::vector<uint32_t>& ids, bool skip_special_tokens = false) const;

  absl::StatusOr<std::vector<v1::Model>> ListModels() const;
  // With TLS for operators' certificates alone.
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo() const;

 private:
  friend class AnswerStream;
  struct Connection;
  std::shared_ptr<const Connection> connection_;
  std::chrono::milliseconds timeout_{0};
};

}  // namespace winnow
