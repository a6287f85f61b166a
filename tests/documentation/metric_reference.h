#pragma once
#include <string>

namespace winnow {

// The page that describes every metric, as Markdown, from the code that writes them: docs/metrics.md.
std::string MetricReference();

}  // namespace winnow
