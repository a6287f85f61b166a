#include "router/membership/registry.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_join.h"
#include "common/rpc/kv_shape.h"
#include "router/membership/fingerprint.h"

namespace winnow {
namespace {

// Enough for any number of restarts within the time that a replaced process takes to notice.
constexpr size_t kMaxFenced = 1024;

// Enough for those whose requests are just being failed.
constexpr size_t kMaxDeparted = 64;

// Whoever waits for a rank has heard of its loss many times by then.
constexpr std::chrono::seconds kExpiredIsNews{60};

// A rank that is late tries to register every few seconds at least.
constexpr std::chrono::seconds kLateIsNews{30};

// For so long who comes back may take to be reached: on a starved machine a registration takes several tries of 8 s.
constexpr std::chrono::seconds kLongestReturn{60};

}  // namespace

const RankRecord* MembershipSnapshot::Find(v1::Role role, const RankKey& key) const {
  for (const RankRecord& record : ranks) {
    if (record.identity.role() == role && KeyOf(record.identity) == key) return &record;
  }
  return nullptr;
}

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

absl::Status Registry::CheckFingerprint(const v1::RegisterRequest& request) {
  if (versions_) WINNOW_RETURN_IF_ERROR(CompareVersions(*versions_, request.fingerprint()));
  if (request.identity().role() != v1::ROLE_INFERENCE_RANK) return absl::OkStatus();
  if (request.limits().vocab_size() == 0 || request.limits().max_context_tokens() == 0) {
    return absl::InvalidArgumentError(
        "an inference rank must register with limits.vocab_size and limits.max_context_tokens");
  }
  if (model_) WINNOW_RETURN_IF_ERROR(CompareModelFingerprints(*model_, request.fingerprint()));
  if (limits_ && limits_->vocab_size() != request.limits().vocab_size()) {
    return absl::FailedPreconditionError(absl::StrCat("limits.vocab_size is ", request.limits().vocab_size(),
                                                      ", but the cluster has ", limits_->vocab_size()));
  }
  return absl::OkStatus();
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
    WINNOW_RETURN_IF_ERROR(CheckFingerprint(request));
    if (!versions_) versions_ = request.fingerprint();
    if (!model_ && identity.role() == v1::ROLE_INFERENCE_RANK) model_ = request.fingerprint();

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
      const auto expired = expired_.find(name);
      if (expired != expired_.end()) {
        if (expired->second.identity.incarnation() == identity.incarnation()) {
          entry.silence = expired->second.silence;
          late_seen_ = clock_();
        }
        expired_.erase(expired);
      }
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
    const auto ordered = orders_.find(identity.rank());
    entry.record.orders = ordered == orders_.end() ? RankOrders() : ordered->second;
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
      NoteIfLate(request.identity());
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
      if (request.identity().role() == v1::ROLE_INFERENCE_RANK) NameExpiredCacheRanks(response);
    }
    response.set_membership_version(version_);
  }
  if (changed) Notify();
  return response;
}

void Registry::NameExpiredCacheRanks(v1::HeartbeatResponse& response) const {
  const auto now = clock_();
  for (const auto& [name, expired] : expired_) {
    if (name.first != v1::ROLE_CACHE_RANK || now - expired.when > kExpiredIsNews) continue;
    *response.add_expired_cache_ranks() = expired.identity;
  }
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

void Registry::NoteIfLate(const v1::Identity& identity) {
  const auto it = expired_.find({identity.role(), identity.rank()});
  if (it == expired_.end() || it->second.identity.incarnation() != identity.incarnation()) return;
  const auto now = clock_();
  if (!it->second.returned) it->second.returned = now;
  if (now - *it->second.returned < kLongestReturn) late_seen_ = now;
}

void Registry::Knocked(const v1::Identity& identity) {
  const std::lock_guard lock(mutex_);
  NoteIfLate(identity);
}

bool Registry::RanksAreLate() const {
  const std::lock_guard lock(mutex_);
  return late_seen_ && clock_() - *late_seen_ < kLateIsNews;
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

absl::Status Registry::CheckKnown(const std::string& rank) const {
  if (orders_.contains(rank)) return absl::OkStatus();
  std::set<std::string> names;
  for (const auto& [name, entry] : entries_) names.insert(name.second);
  if (names.contains(rank)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no rank \"", rank, "\"; ",
                                          names.empty() ? "none has joined" : "there are ",
                                          absl::StrJoin(names, ", ")));
}

absl::Status Registry::CheckOrder(const std::string& rank, std::optional<double> weight) const {
  if (weight && !(*weight >= RankOrders::kLeastWeight && *weight <= RankOrders::kMostWeight)) {
    return absl::InvalidArgumentError(absl::StrCat("a weight is a number from ", RankOrders::kLeastWeight, " to ",
                                                   RankOrders::kMostWeight, ", not ", *weight));
  }
  const std::lock_guard lock(mutex_);
  return CheckKnown(rank);
}

void Registry::HoldOrders(std::map<std::string, RankOrders> orders) {
  std::erase_if(orders, [](const auto& order) { return order.second == RankOrders(); });
  if (orders == orders_) return;
  orders_ = std::move(orders);
  for (auto& [name, entry] : entries_) {
    const auto ordered = orders_.find(name.second);
    entry.record.orders = ordered == orders_.end() ? RankOrders() : ordered->second;
  }
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
    WINNOW_RETURN_IF_ERROR(CheckKnown(rank));
    std::map<std::string, RankOrders> orders = orders_;
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
  return orders_;
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
      expired_[name] = {identity, entry.silence, now};
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
  std::optional<v1::ModelLimits> limits;
  for (const auto& [name, entry] : entries_) {
    if (name.first != v1::ROLE_INFERENCE_RANK) continue;
    const v1::ModelLimits& own = entry.record.limits;
    if (!limits) {
      limits = own;
      continue;
    }
    limits->set_max_context_tokens(std::min(limits->max_context_tokens(), own.max_context_tokens()));
    limits->set_max_budget_tokens(std::min(limits->max_budget_tokens(), own.max_budget_tokens()));
    limits->set_max_running(std::min(limits->max_running(), own.max_running()));
  }
  if (limits) limits_ = std::move(limits);  // with no rank left, the last ones known stay
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
  return limits_;
}

std::optional<v1::Fingerprint> Registry::ModelFingerprint() const {
  std::lock_guard lock(mutex_);
  return model_;
}

std::optional<KvLayout> Registry::kv_layout() const {
  std::lock_guard lock(mutex_);
  if (!model_) return std::nullopt;
  const absl::StatusOr<KvLayout> layout = ParseKvLayout(model_->kv_shape());
  return layout.ok() ? std::optional(*layout) : std::nullopt;
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
