#include "router/membership/registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace winnow {
namespace {

// Enough for any number of restarts within the time that a replaced process takes to notice.
constexpr size_t kMaxFenced = 1024;

// Enough for those whose requests are just being failed.
constexpr size_t kMaxDeparted = 64;

}  // namespace

// Checks come a little late on a busy machine; what is more than another interval is absence.
Registry::Registry(RegistryOptions options, Clock clock)
    : options_(std::move(options)), clock_(std::move(clock)), running_(2 * options_.lease_check, clock_()) {}

bool Registry::Renew(Entry& entry) {
  const auto now = clock_();
  const auto running = running_.Advance(now);
  if (entry.heard_running != std::chrono::steady_clock::time_point()) {
    entry.silence.Note(running - entry.heard_running, now);
  }
  entry.heard = now;
  entry.heard_running = running;
  entry.overdue = false;
  return std::exchange(entry.record.late, false);
}

std::chrono::steady_clock::duration Registry::SilenceOf(const Entry& entry) const {
  return running_.last() - entry.heard_running;
}

bool Registry::HasNowhereToGo(const Name& name, const Entry& entry) const {
  bool has_peers = false;
  for (const auto& [other_name, other] : entries_) {
    const bool fits = entry.record.phases == other.record.phases || other.record.phases == v1::PHASES_BOTH;
    if (other_name.first != name.first || other_name == name || !fits) continue;
    has_peers = true;
    if (!other.record.suspect && SilenceOf(other) < options_.lease) return false;
  }
  return has_peers;
}

std::chrono::milliseconds Registry::PatienceOf(const Name& name, const Entry& entry) const {
  const auto now = clock_();
  SilenceEvidence evidence{.own = entry.silence.At(now), .others = {}};
  for (const auto& [other_name, other] : entries_) {
    if (other_name == name) continue;
    evidence.others.push_back(
        std::max(other.silence.At(now), std::min<SilenceEvidence::Duration>(SilenceOf(other), options_.lease)));
  }
  evidence.move = (name.first == v1::ROLE_CACHE_RANK ? recompute_cost_ : attach_cost_).At(now);
  evidence.has_nowhere_to_go = HasNowhereToGo(name, entry);
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      winnow::PatienceWith(std::move(evidence), options_.lease, options_.max_lease));
}

void Registry::NoteMove(std::chrono::steady_clock::duration took, bool recompute) {
  std::lock_guard lock(mutex_);
  (recompute ? recompute_cost_ : attach_cost_).Note(took, clock_());
}

absl::StatusOr<v1::RegisterResponse> Registry::Register(const v1::RegisterRequest& request) {
  const v1::Identity& identity = request.identity();
  if (identity.role() != v1::ROLE_INFERENCE_RANK && identity.role() != v1::ROLE_CACHE_RANK) {
    return absl::InvalidArgumentError("identity.role must be an inference rank or a cache rank");
  }
  if (identity.rank().empty()) return absl::InvalidArgumentError("identity.rank is empty");
  if (identity.address().empty()) return absl::InvalidArgumentError("identity.address is empty");
  if (identity.incarnation() == 0) return absl::InvalidArgumentError("identity.incarnation is 0");
  if (identity.cluster() != options_.cluster) {
    return absl::FailedPreconditionError(
        absl::StrCat("identity.cluster is \"", identity.cluster(), "\", but this is \"", options_.cluster, "\""));
  }
  const Name name{identity.role(), identity.rank()};
  v1::RegisterResponse response;
  {
    std::lock_guard lock(mutex_);
    if (std::find(fenced_.begin(), fenced_.end(), std::pair(name, identity.incarnation())) != fenced_.end()) {
      return absl::AbortedError(
          absl::StrCat("another process has taken the name ", identity.rank(), ": this incarnation is fenced"));
    }
    WINNOW_RETURN_IF_ERROR(model_.Check(request));
    model_.Joined(request);

    const auto [it, is_new] = entries_.try_emplace(name);
    Entry& entry = it->second;
    if (!is_new && entry.record.identity.incarnation() != identity.incarnation()) {
      fenced_.emplace_front(name, entry.record.identity.incarnation());
      if (fenced_.size() > kMaxFenced) fenced_.pop_back();
      entry = Entry();
    }
    const bool is_new_start = entry.record.identity.incarnation() != identity.incarnation();
    if (is_new_start) {
      entry.record.joined = clock_();
      if (const auto silence = expired_.Returned(identity, clock_())) entry.silence = *silence;
    }
    entry.record.identity = identity;
    entry.record.limits = request.limits();
    entry.record.metrics_address = request.metrics_address();
    entry.record.numerics = request.fingerprint().numerics();
    entry.record.hosted_by_rank = request.hosted_by_rank();
    const bool unspecified = request.phases() == v1::PHASES_UNSPECIFIED;
    entry.record.phases = unspecified ? v1::PHASES_BOTH : request.phases();
    entry.record.decode_prefill_tokens = request.decode_prefill_tokens();
    entry.record.suspect = false;
    entry.record.orders = orders_.Of(identity.rank());
    if (is_new_start && options_.reachability_is_checked) AddLinks(entry.record);
    entry.stream = 0;  // the end of an earlier stream says nothing any more
    Renew(entry);
    RecomputeLimits();
    Changed();
    response.set_membership_version(version_);
    response.set_lease_ms(PatienceOf(name, entry).count());
  }
  response.set_heartbeat_ms(options_.heartbeat.count());
  Notify();
  return response;
}

Registry::StreamId Registry::NewStream() {
  std::lock_guard lock(mutex_);
  return ++last_stream_;
}

Registry::Entries::iterator Registry::FindEntry(const v1::Identity& identity) {
  const auto it = entries_.find({identity.role(), identity.rank()});
  return it != entries_.end() && it->second.record.identity.incarnation() == identity.incarnation() ? it
                                                                                                    : entries_.end();
}

v1::HeartbeatResponse Registry::Heartbeat(StreamId stream, const v1::HeartbeatRequest& request) {
  v1::HeartbeatResponse response;
  bool changed = false;
  {
    std::lock_guard lock(mutex_);
    if (const auto it = FindEntry(request.identity()); it == entries_.end()) {
      response.set_unknown(true);
      expired_.Heard(request.identity(), clock_());
    } else {
      Entry& entry = it->second;
      const bool still_suspect = entry.record.suspect && options_.reachability_is_checked;
      changed = entry.record.suspect != still_suspect || entry.record.load.draining() != request.load().draining() ||
                entry.record.fails() != !request.load().failing().empty();
      entry.record.suspect = still_suspect;
      entry.record.load = request.load();
      changed = Renew(entry) || changed;
      entry.stream = stream;
      if (changed) Changed();
      if (request.identity().role() == v1::ROLE_INFERENCE_RANK) expired_.NameCacheRanks(clock_(), response);
    }
    response.set_membership_version(version_);
  }
  if (changed) Notify();
  return response;
}

void Registry::Departed(const v1::Identity& identity, Departure why) const {
  if (options_.on_departure) options_.on_departure(identity, why);
}

void Registry::StreamEnded(StreamId stream) {
  std::optional<v1::Identity> gone;
  {
    std::lock_guard lock(mutex_);
    const auto it =
        std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e.second.stream == stream; });
    if (it == entries_.end()) return;
    Entry& entry = it->second;
    if (clock_() - entry.heard > PatienceOf(it->first, entry)) {
      entry.record.suspect = true;
      entry.stream = 0;
    } else {
      gone = entry.record.identity;
      Remove(it, Departure::kLost);
      RecomputeLimits();
    }
    Changed();
  }
  if (gone) Departed(*gone, Departure::kLost);
  Notify();
}

Registry::Entries::iterator Registry::Remove(Entries::iterator entry, Departure why) {
  departed_.emplace_front(KeyOf(entry->second.record.identity), why);
  if (departed_.size() > kMaxDeparted) departed_.pop_back();
  return entries_.erase(entry);
}

std::optional<Departure> Registry::DepartureOf(const RankKey& rank) const {
  std::lock_guard lock(mutex_);
  const auto it =
      std::find_if(departed_.begin(), departed_.end(), [&](const auto& gone) { return gone.first == rank; });
  return it == departed_.end() ? std::nullopt : std::optional(it->second);
}

void Registry::Progressed(const v1::Identity& identity) {
  {
    std::lock_guard lock(mutex_);
    const auto it = FindEntry(identity);
    if (it == entries_.end() || !Renew(it->second)) return;
    Changed();
  }
  Notify();
}

void Registry::Leave(const v1::Identity& identity) {
  {
    std::lock_guard lock(mutex_);
    const auto it = FindEntry(identity);
    if (it == entries_.end()) return;
    Remove(it, Departure::kLeft);
    RecomputeLimits();
    Changed();
  }
  Departed(identity, Departure::kLeft);
  Notify();
}

void Registry::ReportUnreachable(const v1::Identity& identity) {
  {
    std::lock_guard lock(mutex_);
    const auto it = FindEntry(identity);
    if (it == entries_.end() || it->second.record.suspect) return;
    it->second.record.suspect = true;
    Changed();
  }
  Notify();
}

void Registry::Knocked(const v1::Identity& identity) {
  const std::lock_guard lock(mutex_);
  expired_.Heard(identity, clock_());
}

bool Registry::RanksAreLate() const {
  const std::lock_guard lock(mutex_);
  return expired_.any_late(clock_());
}

void Registry::Reached(const v1::Identity& identity) {
  {
    std::lock_guard lock(mutex_);
    const auto it = FindEntry(identity);
    if (it == entries_.end() || !it->second.record.suspect) return;
    it->second.record.suspect = false;
    Changed();
  }
  Notify();
}

void Registry::AddLinks(RankRecord& joined) {
  joined.unreached.clear();
  for (auto& [name, entry] : entries_) {
    RankRecord& other = entry.record;
    if (other.identity.role() == joined.identity.role()) continue;
    const bool is_inference = joined.identity.role() == v1::ROLE_INFERENCE_RANK;
    RankRecord& inference = is_inference ? joined : other;
    const RankRecord& cache = is_inference ? other : joined;
    std::erase_if(inference.unreached, [this](const RankKey& key) {
      const auto it = entries_.find({v1::ROLE_CACHE_RANK, key.rank});
      return it == entries_.end() || KeyOf(it->second.record.identity) != key;
    });
    if (cache.hosted_by_rank.empty()) inference.unreached.push_back(KeyOf(cache.identity));
  }
}

void Registry::SetLink(const RankKey& inference, const RankKey& cache, bool reached) {
  {
    std::lock_guard lock(mutex_);
    const auto it = entries_.find({v1::ROLE_INFERENCE_RANK, inference.rank});
    if (it == entries_.end() || KeyOf(it->second.record.identity) != inference) return;
    std::vector<RankKey>& unreached = it->second.record.unreached;
    const bool was_reached = std::find(unreached.begin(), unreached.end(), cache) == unreached.end();
    if (was_reached == reached) return;
    if (reached) {
      std::erase(unreached, cache);
    } else if (const auto there = entries_.find({v1::ROLE_CACHE_RANK, cache.rank});
               there != entries_.end() && KeyOf(there->second.record.identity) == cache) {
      unreached.push_back(cache);
    } else {
      return;
    }
    Changed();
  }
  Notify();
}

absl::Status Registry::CheckOrder(const std::string& rank, std::optional<double> weight) const {
  if (weight) WINNOW_RETURN_IF_ERROR(StandingOrders::CheckWeight(*weight));
  const std::lock_guard lock(mutex_);
  return orders_.CheckKnown(rank, RankNames());
}

std::set<std::string> Registry::RankNames() const {
  std::set<std::string> names;
  for (const auto& [name, entry] : entries_) names.insert(name.second);
  return names;
}

void Registry::HoldOrders(std::map<std::string, RankOrders> orders) {
  if (!orders_.Hold(std::move(orders))) return;
  for (auto& [name, entry] : entries_) entry.record.orders = orders_.Of(name.second);
  Changed();
}

void Registry::SetOrders(std::map<std::string, RankOrders> orders) {
  {
    const std::lock_guard lock(mutex_);
    HoldOrders(std::move(orders));
  }
  Notify();
}

absl::Status Registry::Order(const std::string& rank, const std::function<void(RankOrders&)>& change) {
  {
    const std::lock_guard lock(mutex_);
    WINNOW_RETURN_IF_ERROR(orders_.CheckKnown(rank, RankNames()));
    StandingOrders::ByName orders = orders_.by_name();
    change(orders[rank]);
    HoldOrders(std::move(orders));
  }
  Notify();
  return absl::OkStatus();
}

absl::Status Registry::SetDuty(const std::string& rank, RankDuty duty) {
  return Order(rank, [duty](RankOrders& orders) { orders.duty = duty; });
}

absl::Status Registry::SetWeight(const std::string& rank, double weight) {
  WINNOW_RETURN_IF_ERROR(CheckOrder(rank, weight));
  return Order(rank, [weight](RankOrders& orders) { orders.weight = weight; });
}

std::map<std::string, RankOrders> Registry::Orders() const {
  std::lock_guard lock(mutex_);
  return orders_.by_name();
}

bool Registry::IsToDrain(const RankKey& inference) const {
  std::lock_guard lock(mutex_);
  const auto it = entries_.find({v1::ROLE_INFERENCE_RANK, inference.rank});
  return it != entries_.end() && KeyOf(it->second.record.identity) == inference && it->second.record.drains();
}

void Registry::ExpireLeases() {
  std::vector<v1::Identity> gone;
  {
    std::lock_guard lock(mutex_);
    const auto now = clock_();
    running_.Advance(now);
    bool changed = false;
    for (auto next = entries_.begin(); next != entries_.end();) {
      auto& [name, entry] = *next;
      const auto silence = SilenceOf(entry);
      const auto patience = silence < options_.lease ? options_.max_lease : PatienceOf(name, entry);
      if (silence >= options_.lease && silence < patience) changed |= !std::exchange(entry.record.late, true);
      if (silence < patience || !std::exchange(entry.overdue, true)) {
        ++next;
        continue;
      }
      const v1::Identity& identity = entry.record.identity;
      entry.silence.Note(patience, now);
      expired_.Add(identity, entry.silence, now);
      gone.push_back(identity);
      next = Remove(next, Departure::kExpired);
    }
    if (gone.empty() && !changed) return;
    RecomputeLimits();
    Changed();
  }
  for (const v1::Identity& identity : gone) Departed(identity, Departure::kExpired);
  Notify();
}

void Registry::RecomputeLimits() {
  ClusterModel::Limits limits;
  for (const auto& [name, entry] : entries_) {
    if (name.first == v1::ROLE_INFERENCE_RANK) limits.Add(entry.record.limits);
  }
  model_.SetLimits(std::move(limits));
}

MembershipSnapshot Registry::Snapshot() const {
  std::lock_guard lock(mutex_);
  MembershipSnapshot snapshot;
  snapshot.version = version_;
  snapshot.ranks.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) snapshot.ranks.push_back(entry.record);
  return snapshot;
}

std::optional<v1::ModelLimits> Registry::Limits() const {
  std::lock_guard lock(mutex_);
  return model_.limits();
}

std::optional<v1::Fingerprint> Registry::ModelFingerprint() const {
  std::lock_guard lock(mutex_);
  return model_.fingerprint();
}

std::optional<KvLayout> Registry::kv_layout() const {
  std::lock_guard lock(mutex_);
  return model_.kv_layout();
}

std::unique_ptr<Registry::Subscription> Registry::Subscribe(Callback callback) {
  auto subscriber = std::make_shared<Subscriber>();
  subscriber->callback = std::move(callback);
  std::lock_guard lock(mutex_);
  subscribers_.push_back(subscriber);
  return std::make_unique<Subscription>(this, std::move(subscriber));
}

Registry::Subscription::~Subscription() {
  {
    std::lock_guard lock(registry_->mutex_);
    std::erase(registry_->subscribers_, subscriber_);
  }
  subscriber_->strand.Close();
}

void Registry::Notify() {
  std::vector<std::shared_ptr<Subscriber>> subscribers;
  {
    std::lock_guard lock(mutex_);
    subscribers = subscribers_;
  }
  // The table is read inside the task: tasks of one subscriber are in order, so it never goes back in time.
  for (const auto& subscriber : subscribers) {
    subscriber->strand.Post([this, s = subscriber.get()] { s->callback(Snapshot()); });
  }
}

}  // namespace winnow
