#include "router/keys/key_ring.h"

#include <sys/stat.h>

namespace winnow {

KeyRing::Version KeyRing::VersionOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  return {int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_ino, info.st_size};
}

absl::StatusOr<std::unique_ptr<KeyRing>> KeyRing::Load(const std::string& path) {
  auto ring = std::unique_ptr<KeyRing>(new KeyRing(path));
  ring->version_ = VersionOf(path);
  WINNOW_ASSIGN_OR_RETURN(const KeyFile file, KeyFile::Load(path));
  ring->Take(file);
  return ring;
}

void KeyRing::Take(const KeyFile& file) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::shared_ptr<KeyAccount>, std::less<>> accounts;
  for (const ApiKey& key : file.keys) {
    const auto known = by_id_.find(key.id);
    std::shared_ptr<KeyAccount> account =
        known == by_id_.end() ? std::make_shared<KeyAccount>(key, now) : known->second;
    account->Update(key, now);
    accounts.emplace(key.id, std::move(account));
  }
  by_id_ = std::move(accounts);
}

absl::StatusOr<bool> KeyRing::ReloadIfChanged() {
  const std::lock_guard lock(reload_mutex_);
  if (VersionOf(path_) == version_) return false;
  WINNOW_RETURN_IF_ERROR(Read().status());
  return true;
}

absl::StatusOr<size_t> KeyRing::Reload() {
  const std::lock_guard lock(reload_mutex_);
  return Read();
}

absl::StatusOr<size_t> KeyRing::Read() {
  version_ = VersionOf(path_);
  const absl::StatusOr<KeyFile> file = KeyFile::Load(path_);
  if (!file.ok()) {
    ++counters_.failed_reloads;
    return file.status();
  }
  Take(*file);
  ++counters_.reloads;
  return file->keys.size();
}

absl::StatusOr<Caller> KeyRing::Authenticate(std::string_view credentials) {
  if (credentials.empty()) {
    ++counters_.without_key;
    return absl::UnauthenticatedError("no API key: send one as \"Authorization: Bearer KEY\"");
  }
  if (const std::optional<PresentedKey> presented = ParseCredentials(credentials)) {
    std::shared_ptr<KeyAccount> account;
    {
      const std::lock_guard lock(mutex_);
      if (const auto it = by_id_.find(presented->id); it != by_id_.end()) account = it->second;
    }
    // An id is no secret, so it may show whether there is such a key.
    if (account != nullptr) {
      const ApiKey key = account->key();
      if (Matches(key, *presented)) return Caller{key.tenant_name(), key.weight, std::move(account)};
    }
  }
  ++counters_.wrong_key;
  return absl::UnauthenticatedError("the API key is not known here, or it was revoked");
}

std::vector<std::shared_ptr<KeyAccount>> KeyRing::accounts() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<KeyAccount>> accounts;
  for (const auto& [id, account] : by_id_) accounts.push_back(account);
  return accounts;
}

}  // namespace winnow
