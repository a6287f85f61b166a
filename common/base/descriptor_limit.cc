#include "common/base/descriptor_limit.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace winnow {

absl::StatusOr<uint64_t> RaiseDescriptorLimit(uint64_t least) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::InternalError(absl::StrCat("cannot read the limit of open files: ", std::strerror(errno)));
  }
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    // The kernel's own ceiling (fs.nr_open) may have been lowered below the hard limit since; the soft one stands then.
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  if (limit.rlim_cur >= least) return limit.rlim_cur;
  return absl::FailedPreconditionError(absl::StrCat("the process may open ", limit.rlim_cur, " files, and at least ",
                                                    least,
                                                    " are needed: raise the hard limit (ulimit -Hn, LimitNOFILE=)"));
}

}  // namespace winnow
