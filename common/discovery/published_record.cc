#include "common/discovery/published_record.h"

namespace winnow {
namespace {

// Of changes by others between reading and writing; only starts of one process under one name cause them.
constexpr int kMaxAttempts = 8;

}  // namespace

absl::Status PublishedRecord::Publish(EtcdClient& client, int64_t lease) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    etcdserverpb::RangeRequest read;
    read.set_key(key_);
    WINNOW_ASSIGN_OR_RETURN(const etcdserverpb::RangeResponse found, client.Range(read));
    const bool is_there = found.kvs_size() > 0;
    const std::string present = is_there ? found.kvs(0).value() : "";
    if (!predecessor_) predecessor_ = present;
    if (is_there && present == value_ && found.kvs(0).lease() == lease) return absl::OkStatus();
    if (is_there && present != value_ && present != *predecessor_) {
      return absl::AbortedError(
          absl::StrCat("a later start has taken ", key_, " in the registry: this incarnation is fenced"));
    }
    etcdserverpb::TxnRequest replace;
    etcdserverpb::Compare& unchanged = *replace.add_compare();
    unchanged.set_target(etcdserverpb::Compare::MOD);
    unchanged.set_key(key_);
    unchanged.set_mod_revision(is_there ? found.kvs(0).mod_revision() : 0);
    etcdserverpb::PutRequest& put = *replace.add_success()->mutable_request_put();
    put.set_key(key_);
    put.set_value(value_);
    put.set_lease(lease);
    WINNOW_ASSIGN_OR_RETURN(const etcdserverpb::TxnResponse replaced, client.Commit(replace));
    if (replaced.succeeded()) return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(key_, " in the registry does not come to rest"));
}

etcdserverpb::Compare PublishedRecord::IsPublished() const {
  etcdserverpb::Compare compare;
  compare.set_target(etcdserverpb::Compare::VALUE);
  compare.set_key(key_);
  compare.set_value(value_);
  return compare;
}

}  // namespace winnow
