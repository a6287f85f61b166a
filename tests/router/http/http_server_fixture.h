#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "router/http/http_server.h"
#include "router/http/route_table.h"

namespace winnow {

// A server whose routes answer at once ("/hello", "/echo"), or hand their exchange to the test ("/hold").
class HttpServerTest : public ::testing::Test {
 protected:
  using Exchange = std::shared_ptr<HttpExchange>;

  void Start(HttpServerOptions options = {}) {
    options.port = 0;
    routes_.Add(HttpMethod::kGet, "/hello",
                [](Exchange exchange) { exchange->Respond({.content_type = "text/plain", .body = "hello"}); });
    routes_.Add(HttpMethod::kPost, "/echo", [](Exchange exchange) {
      exchange->Respond({.content_type = "text/plain", .body = exchange->request().body});
    });
    routes_.Add(HttpMethod::kGet, "/tail/*", [](Exchange exchange) {
      exchange->Respond({.content_type = "text/plain", .body = PathTail(exchange->request(), "/tail/")});
    });
    routes_.Add(HttpMethod::kPost, "/hold", [this](Exchange exchange) {
      exchange->OnClose([this](CloseReason reason) {
        std::lock_guard lock(mutex_);
        closed_.push_back(reason);
        changed_.notify_all();
      });
      std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
      changed_.notify_all();
    });
    HttpHooks hooks;
    hooks.on_request = [this](std::string_view route, std::string_view method, int status, double) {
      std::lock_guard lock(mutex_);
      reported_.push_back(absl::StrCat(AbslSv(method), " ", AbslSv(route), " ", status));
      changed_.notify_all();
    };
    auto server = HttpServer::Start(
        options, [this](Exchange exchange) { routes_.Dispatch(std::move(exchange)); }, hooks);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void TearDown() override {
    server_.reset();
    held_.clear();
  }

  uint16_t port() const { return server_->port(); }

  // The nth exchange that "/hold" was asked for.
  Exchange Held(size_t n = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.size() > n; });
    return held_[n];
  }
  CloseReason WaitForClose() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !closed_.empty(); });
    return closed_.front();
  }
  std::vector<std::string> Reported(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reported_.size() >= count; });
    return reported_;
  }
  // Runs on the connection's thread and waits for it.
  static void RunOn(const Exchange& exchange, std::function<void()> task) {
    std::promise<void> done;
    exchange->Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  RouteTable routes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Exchange> held_;
  std::vector<CloseReason> closed_;
  std::vector<std::string> reported_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace winnow
