#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace winnow {

// Reminds streams again and again to show that they live, so that proxies and clients do not give up on one whose next
// token takes long. One thread for all of them.
class StreamKeepAlive {
 public:
  class Stream {
   public:
    virtual ~Stream() = default;
    // Write something if nothing was written for the interval. On the reminder's thread; must not block.
    virtual void KeepAlive() = 0;
  };

  // Streams may be quiet for at most 5/4 of `interval`; 0 reminds nobody.
  explicit StreamKeepAlive(std::chrono::milliseconds interval);
  ~StreamKeepAlive();

  // From now on until the stream is destroyed. Any thread.
  void Watch(std::weak_ptr<Stream> stream);

 private:
  void Run();
  void Remind();

  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;                       // guarded by mutex_
  std::vector<std::weak_ptr<Stream>> streams_;  // guarded by mutex_
  std::thread thread_;                          // last
};

}  // namespace winnow
