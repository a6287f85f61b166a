#include "cache_rank/service/control_queue.h"

namespace winnow {

bool ControlQueue::Post(std::function<void()> command) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    commands_.push_back(std::move(command));
  }
  wake_();
  return true;
}

void ControlQueue::RunAll() {
  std::vector<std::function<void()>> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (auto& command : commands) command();
}

void ControlQueue::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  RunAll();
}

}  // namespace winnow
