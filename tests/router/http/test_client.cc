#include "tests/router/http/test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow {

TestClient::TestClient(uint16_t port, int receive_buffer_bytes) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  WINNOW_CHECK(fd_ >= 0);
  if (receive_buffer_bytes > 0)
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  const timeval timeout{.tv_sec = 30, .tv_usec = 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  WINNOW_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

TestClient::~TestClient() {
  Close();
}

void TestClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the server refused the rest; what it said is still to be read
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void TestClient::Request(std::string_view method, std::string_view path, std::string_view body,
                         std::string_view headers) {
  Send(absl::StrCat(AbslSv(method), " ", AbslSv(path), " HTTP/1.1\r\nHost: test\r\nContent-Length: ", body.size(),
                    "\r\n", AbslSv(headers), "\r\n", AbslSv(body)));
}

std::string TestClient::Response::Header(std::string_view name) const {
  for (size_t line = head.find("\r\n"); line != head.npos && line + 2 < head.size();
       line = head.find("\r\n", line + 2)) {
    const size_t colon = head.find(": ", line);
    if (colon == head.npos) break;
    if (!absl::EqualsIgnoreCase(head.substr(line + 2, colon - line - 2), AbslSv(name))) continue;
    return head.substr(colon + 2, head.find("\r\n", colon) - colon - 2);
  }
  return "";
}

TestClient::Response TestClient::ReadResponse(bool head_only) {
  Response response;
  response.head = ReadHead();
  if (response.head.size() < 12) return response;
  response.status = std::stoi(response.head.substr(9, 3));
  if (head_only || response.status == 204 || response.status == 100) return response;
  if (const std::string length = response.Header("Content-Length"); !length.empty()) {
    response.body = Take(std::stoul(length));
  } else if (response.Header("Transfer-Encoding") == "chunked") {
    for (std::string chunk = ReadChunk(); !chunk.empty(); chunk = ReadChunk()) response.body += chunk;
  } else {
    while (Fill()) {
    }
    response.body = std::move(buffer_);
    buffer_.clear();
  }
  return response;
}

std::string TestClient::ReadHead() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n\r\n")) == buffer_.npos) {
    if (!Fill()) return "";
  }
  return Take(end + 4);
}

std::string TestClient::ReadChunk() {
  const std::string size = ReadLine();
  if (size.empty()) return "";
  std::string chunk = Take(std::stoul(size, nullptr, 16));
  ReadLine();
  return chunk;
}

std::optional<std::string> TestClient::ReadEvent() {
  for (;;) {
    const size_t end = events_.find("\n\n");
    if (end == events_.npos) {
      const std::string chunk = ReadChunk();
      if (chunk.empty()) return std::nullopt;
      events_ += chunk;
      continue;
    }
    const std::string event = events_.substr(0, end);
    events_.erase(0, end + 2);
    if (event.starts_with("data: ")) return event.substr(6);
    // One with a name.
    if (const size_t data = event.find("\ndata: "); event.starts_with("event: ")) return event.substr(data + 7);
  }
}

bool TestClient::ReadsEnd() {
  return buffer_.empty() && !Fill();
}

void TestClient::ShutdownSend() {
  shutdown(fd_, SHUT_WR);
}

void TestClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void TestClient::Reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

bool TestClient::Fill() {
  char bytes[16384];
  const ssize_t received = recv(fd_, bytes, sizeof(bytes), 0);
  if (received <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(received));
  return true;
}

std::string TestClient::Take(size_t bytes) {
  while (buffer_.size() < bytes && Fill()) {
  }
  std::string taken = buffer_.substr(0, bytes);
  buffer_.erase(0, taken.size());
  return taken;
}

std::string TestClient::ReadLine() {
  size_t end = 0;
  while ((end = buffer_.find("\r\n")) == buffer_.npos) {
    if (!Fill()) return "";
  }
  std::string line = Take(end + 2);
  line.resize(end);
  return line;
}

}  // namespace winnow
