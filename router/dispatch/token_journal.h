#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

// The router's copy of what a request has generated so far: what another attempt must be given, and what the client has
// seen. It makes one gapless stream of indices out of several attempts, which may overlap.
class TokenJournal {
 public:
  struct Accepted {
    uint32_t first_index = 0;
    std::vector<v1::Token> tokens;  // the new ones; may be empty
    uint32_t replayed = 0;          // tokens that were known already
    uint32_t mismatched = 0;        // of these, the ones whose id differs from the one delivered
  };

  // Of a request that begins with tokens of another.
  void Begin(std::vector<uint32_t> ids) { ids_ = std::move(ids); }
  // Takes the tokens of an attempt. DATA_LOSS when there is a gap between what is known and their first index.
  absl::StatusOr<Accepted> Accept(const v1::DispatchResponse::TokenDelta& delta);

  const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  std::vector<uint32_t> ids_;
};

}  // namespace winnow
