#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/http/http_message.h"

namespace winnow {

// A blocking HTTP client that can also misbehave. Reads give up after 30 s, so that a hanging server fails a test
// instead of hanging it.
class TestClient {
 public:
  // `receive_buffer_bytes` > 0 makes the client's window small.
  explicit TestClient(uint16_t port, int receive_buffer_bytes = 0);
  ~TestClient();
  TestClient(const TestClient&) = delete;

  void Send(std::string_view bytes);
  // Sends a well-formed request with Host and Content-Length.
  void Request(std::string_view method, std::string_view path, std::string_view body = "",
               std::string_view headers = "");

  struct Response {
    int status = 0;
    std::string head;
    std::string body;  // with chunks joined
    std::string Header(std::string_view name) const;
  };
  // The next response, complete. `head_only` for answers to HEAD.
  Response ReadResponse(bool head_only = false);
  std::string ReadHead();
  // One chunk of a chunked body; empty at its end.
  std::string ReadChunk();
  // Data of the next server-sent event; nullopt at the end of the body.
  std::optional<std::string> ReadEvent();
  // True when the server closes without sending more.
  bool ReadsEnd();

  void ShutdownSend();
  void Close();
  // Closes with a reset instead of an orderly end.
  void Reset();

 private:
  bool Fill();
  std::string Take(size_t bytes);
  std::string ReadLine();

  int fd_ = -1;
  std::string buffer_;
  std::string events_;
};

}  // namespace winnow
