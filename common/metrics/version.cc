#include "common/metrics/version.h"

namespace winnow {

std::string_view Version() {
  return WINNOW_VERSION;
}

}  // namespace winnow
