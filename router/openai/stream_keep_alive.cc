#include "router/openai/stream_keep_alive.h"

#include <algorithm>
#include <utility>

namespace winnow {

StreamKeepAlive::StreamKeepAlive(std::chrono::milliseconds interval) : interval_(interval) {
  if (interval_.count() > 0) thread_ = std::thread([this] { Run(); });
}

StreamKeepAlive::~StreamKeepAlive() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StreamKeepAlive::Watch(std::weak_ptr<Stream> stream) {
  if (interval_.count() == 0) return;
  std::lock_guard lock(mutex_);
  streams_.push_back(std::move(stream));
}

void StreamKeepAlive::Run() {
  const auto period = std::max(interval_ / 4, std::chrono::milliseconds(1));
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, period, [this] { return stopping_; })) {
    lock.unlock();
    Remind();
    lock.lock();
  }
}

void StreamKeepAlive::Remind() {
  // Locked pointers are released without the mutex: the last reference of a stream may be one of them.
  std::vector<std::shared_ptr<Stream>> alive;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(streams_, [&](const std::weak_ptr<Stream>& stream) {
      std::shared_ptr<Stream> locked = stream.lock();
      if (locked == nullptr) return true;
      alive.push_back(std::move(locked));
      return false;
    });
  }
  for (const auto& stream : alive) stream->KeepAlive();
}

}  // namespace winnow
