#include "transport/path_choice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "transport/channel_address.h"

namespace winnow {
absl::StatusOr<std::unique_ptr<PayloadPath>>& PathChoice::Make(const PayloadPathKind& kind) {
  const auto made = std::find_if(made_.begin(), made_.end(), [&](const Made& m) { return m.name == kind.name; });
  if (made != made_.end()) return made->path;
  return made_.emplace_back(Made{kind.name, kind.make(window_bytes_)}).path;
}

absl::Status PathChoice::NothingInCommon(const Offered& offers) {
  // What keeps this side from a path comes first.
  for (const PayloadPathKind& kind : kinds_) {
    if (const auto& path = Make(kind); !path.ok()) return Annotate(path.status(), kind.name);
  }
  for (const auto& [name, text] : offers) {
    if (name.empty()) return absl::FailedPreconditionError(absl::StrCat("the peer says: ", AbslSv(text)));
  }
  return absl::FailedPreconditionError("the peer offers none of these paths");
}

std::string PathChoice::Offers() {
  std::string offers;
  if (connected_) {
    if (path_ == nullptr) {  // a refusal, for the peer to say
      AppendText(offers, {});
      AppendText(offers, StdSv(why_none_.message()));
      return offers;
    }
    AppendText(offers, name_);
    AppendText(offers, path_->LocalAddress());
    return offers;
  }
  for (const PayloadPathKind& kind : kinds_) {
    const auto& path = Make(kind);
    if (!path.ok()) continue;
    AppendText(offers, kind.name);
    AppendText(offers, (*path)->LocalAddress());
  }
  return offers;
}

void PathChoice::Connect(std::string_view peer_offers) {
  connected_ = true;
  Offered offers;
  while (!peer_offers.empty()) {
    const std::optional<std::string_view> name = TakeText(peer_offers), address = TakeText(peer_offers);
    if (!name.has_value() || !address.has_value()) break;
    offers.emplace_back(*name, *address);
  }
  for (const PayloadPathKind& kind : kinds_) {
    const auto offer = std::find_if(offers.begin(), offers.end(), [&](const auto& o) { return o.first == kind.name; });
    if (offer == offers.end()) continue;
    absl::StatusOr<std::unique_ptr<PayloadPath>>& path = Make(kind);
    const absl::Status status = path.ok() ? (*path)->Connect(offer->second) : path.status();
    if (status.ok()) {
      name_ = kind.name;
      path_ = *std::move(path);
      break;
    }
    if (why_none_.ok()) why_none_ = Annotate(status, kind.name);  // of the one that is liked best
  }
  if (path_ == nullptr && why_none_.ok()) why_none_ = NothingInCommon(offers);
  made_.clear();
  if (path_ != nullptr) why_none_ = absl::OkStatus();
}

}  // namespace winnow
