#pragma once
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <mutex>
#include <thread>
#include <utility>

namespace winnow {

// One event loop and its thread. Shared by those who may post to it for longer than the server runs: after Stop, posts
// are dropped.
class EventLoop {
 public:
  ~EventLoop() { Stop(); }

  boost::asio::io_context& context() { return context_; }

  void Run() {
    thread_ = std::thread([this] { context_.run(); });
  }

  // Any thread; never blocks.
  template <typename Task>
  void Post(Task&& task) {
    std::lock_guard lock(mutex_);
    if (open_) boost::asio::post(context_, std::forward<Task>(task));
  }

  // Returns when all that was posted, and every operation under way, is done. Not from the loop itself.
  void Stop() {
    {
      std::lock_guard lock(mutex_);
      open_ = false;
    }
    work_.reset();
    if (thread_.joinable()) thread_.join();
  }

 private:
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_ =
      boost::asio::make_work_guard(context_);
  std::thread thread_;
  std::mutex mutex_;
  bool open_ = true;  // guarded by mutex_
};

}  // namespace winnow
