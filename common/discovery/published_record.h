#pragma once
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/discovery/etcd_client.h"

namespace winnow {

// A key of the registry that belongs to one start of a process at a time: the latest. A record that is there when this
// start first looks is of an earlier one, and is replaced. Any other that appears later is of a later start, which has
// fenced this one. That needs no order of incarnations or clocks, and holds when etcd has lost its data in between.
class PublishedRecord {
 public:
  // `value` is no other start's.
  PublishedRecord(std::string key, std::string value) : key_(std::move(key)), value_(std::move(value)) {}

  // Puts the record under the lease, unless it is there. ABORTED: a later start of the process has the key.
  absl::Status Publish(EtcdClient& client, int64_t lease);

  // Holds while the record is there.
  etcdserverpb::Compare IsPublished() const;
  const std::string& key() const { return key_; }

 private:
  const std::string key_;
  const std::string value_;
  std::optional<std::string> predecessor_;  // of the first look; empty where there was none
};

}  // namespace winnow
