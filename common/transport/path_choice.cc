#include "common/transport/path_choice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/transport/channel_address.h"

namespace winnow {
absl::StatusOr<std::unique_ptr<PayloadPath>>& PathChoice::Make(const PayloadPathKind& kind) {
  const auto made = std::find_if(made_.begin(), made_.end(), [&](const Made& m) { return m.name == kind.name; });
  if (made != made_.end()) return made->path;
  return made_.emplace_back(Made{kind.name, kind.make(window_bytes_)}).path;
}

std::string PathChoice::Offers() {
  std::string offers;
  if (connected_) {
    if (path_ == nullptr) return offers;
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
  std::vector<std::pair<std::string_view, std::string_view>> offers;
  while (!peer_offers.empty()) {
    const std::optional<std::string_view> name = TakeText(peer_offers), address = TakeText(peer_offers);
    if (!name.has_value() || !address.has_value()) break;
    offers.emplace_back(*name, *address);
  }
  for (const PayloadPathKind& kind : kinds_) {
    const auto offer = std::find_if(offers.begin(), offers.end(), [&](const auto& o) { return o.first == kind.name; });
    absl::Status status = absl::FailedPreconditionError("the peer does not offer it");
    if (offer != offers.end()) {
      absl::StatusOr<std::unique_ptr<PayloadPath>>& path = Make(kind);
      status = path.ok() ? (*path)->Connect(offer->second) : path.status();
      if (status.ok()) {
        name_ = kind.name;
        path_ = *std::move(path);
        break;
      }
    }
    if (why_none_.ok()) why_none_ = Annotate(status, kind.name);  // of the one that is liked best
  }
  made_.clear();
  if (path_ != nullptr) why_none_ = absl::OkStatus();
}

}  // namespace winnow
