#include "router/http/request_id.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace winnow {

std::string NewRequestId() {
  thread_local std::mt19937_64 random([] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }());
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad16), absl::Hex(random(), absl::kZeroPad16));
}

bool IsUsableRequestId(std::string_view id) {
  if (id.empty() || id.size() > 128) return false;
  for (const char c : id) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != ':' && c != '-')
      return false;
  }
  return true;
}

}  // namespace winnow
