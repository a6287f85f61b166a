#include "common/base/descriptor_limit.h"

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "gtest/gtest.h"

namespace winnow {
namespace {

// Limits are lowered in a process of its own: a hard one cannot be raised again.
[[noreturn]] void RaiseFrom(rlim_t soft, rlim_t hard, uint64_t least) {
  const rlimit lowered{.rlim_cur = soft, .rlim_max = hard};
  setrlimit(RLIMIT_NOFILE, &lowered);
  const absl::StatusOr<uint64_t> raised = RaiseDescriptorLimit(least);
  rlimit now{};
  getrlimit(RLIMIT_NOFILE, &now);
  std::fprintf(stderr, "now %d; ", static_cast<int>(now.rlim_cur));
  if (!raised.ok()) std::fprintf(stderr, "%s", raised.status().ToString().c_str());
  std::_Exit(raised.ok() && *raised == now.rlim_cur ? 0 : 1);
}

TEST(DescriptorLimit, IsRaisedToTheHardOne) {
  EXPECT_EXIT(RaiseFrom(32, 200, 100), testing::ExitedWithCode(0), "now 200; ");
}

TEST(DescriptorLimit, ThatIsTooLowIsAnErrorThatSaysWhatIsNeeded) {
  EXPECT_EXIT(RaiseFrom(32, 64, 100), testing::ExitedWithCode(1),
              "now 64; FAILED_PRECONDITION: the process may open 64 files, and at least 100 are needed");
}

}  // namespace
}  // namespace winnow
