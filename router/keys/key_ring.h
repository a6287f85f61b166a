#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "router/keys/caller.h"
#include "router/keys/key_file.h"

namespace winnow {

// The keys of a file, by id, and what is used of each. Thread-safe.
class KeyRing {
 public:
  using Clock = KeyAccount::Clock;

  // Errors name the file. An empty file is one without keys: everybody is refused.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Load(const std::string& path);

  // Authenticator.
  absl::StatusOr<Caller> Authenticate(std::string_view credentials);

  // Reads the file again if it is another than the one that was read last; true when it was and its keys are in force.
  // What a key has used counts on. An error, said once for each change of the file, leaves the keys as they were.
  absl::StatusOr<bool> ReloadIfChanged();
  // The same, whether or not it has changed; the number of keys that are in force.
  absl::StatusOr<size_t> Reload();
  const std::string& path() const { return path_; }

  struct Counters {
    std::atomic<uint64_t> without_key{0};
    std::atomic<uint64_t> wrong_key{0};
    std::atomic<uint64_t> reloads{0};
    std::atomic<uint64_t> failed_reloads{0};
  };
  const Counters& counters() const { return counters_; }
  std::vector<std::shared_ptr<KeyAccount>> accounts() const;

 private:
  // What tells one state of the file from another.
  struct Version {
    int64_t modified_ns = 0;
    uint64_t inode = 0;
    int64_t size = 0;
    friend bool operator==(const Version&, const Version&) = default;
  };
  static Version VersionOf(const std::string& path);

  explicit KeyRing(std::string path) : path_(std::move(path)) {}
  void Take(const KeyFile& file);
  absl::StatusOr<size_t> Read();  // reload_mutex_ held

  const std::string path_;
  Counters counters_;

  std::mutex reload_mutex_;
  Version version_;  // guarded by reload_mutex_, of the file that was read last

  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<KeyAccount>, std::less<>> by_id_;  // guarded by mutex_
};

}  // namespace winnow
