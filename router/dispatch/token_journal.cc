#include "router/dispatch/token_journal.h"

namespace winnow {

absl::StatusOr<TokenJournal::Accepted> TokenJournal::Accept(const v1::DispatchResponse::TokenDelta& delta) {
  if (delta.first_index() > ids_.size()) {
    return absl::DataLossError(
        absl::StrCat("the inference rank sent token ", delta.first_index(), " where token ", ids_.size(), " was due"));
  }
  Accepted accepted;
  accepted.first_index = static_cast<uint32_t>(ids_.size());
  size_t index = delta.first_index();
  for (const v1::Token& token : delta.tokens()) {
    if (index < ids_.size()) {
      ++accepted.replayed;
      if (ids_[index] != token.id()) ++accepted.mismatched;
    } else {
      ids_.push_back(token.id());
      accepted.tokens.push_back(token);
    }
    ++index;
  }
  return accepted;
}

}  // namespace winnow
