#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "common/rpc/credentials.h"
#include "inference_rank/links/link_silence.h"
#include "inference_rank/links/link_table.h"

namespace winnow {

// Looks after the links to cache ranks from a thread of its own, as the engine's may be the one that waits: gives up
// those whose cache ranks are cut off without a word (LinkSilence), long before the backstop of a wait. A cache rank
// whose process ends closes its Exchange stream; one that no packet reaches does not.
class LinkWatch {
 public:
  LinkWatch(LinkTable& links, Credentials credentials);
  ~LinkWatch();

  // Cache ranks that a router has given up for their silence; it says so again with each of its heartbeats. Any thread.
  void NoteExpired(std::span<const v1::Identity> cache_ranks);

 private:
  using Rank = std::pair<std::string, uint64_t>;  // its name and which start of it
  using Time = LinkSilence::Time;

  void Run();
  void Look(const std::shared_ptr<CacheLink>& link, LinkSilence& silence);
  bool IsExpired(const Rank& rank, Time now);
  bool stopping();

  LinkTable& links_;
  const Credentials credentials_;

  struct Watched {
    const CacheLink* link = nullptr;  // the present one
    LinkSilence silence;
  };
  std::map<Rank, Watched> watched_;  // the thread's own; of all cache ranks that there was a link to

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::map<Rank, Time> expired_;  // when a router last said so
  bool has_news_ = false;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace winnow
