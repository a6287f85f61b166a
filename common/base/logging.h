#pragma once
#include "spdlog/spdlog.h"

// Logging is spdlog: spdlog::info("{} rows", rows) and so on. libfmt has the code that brings arguments into a text,
// but its header does not say so, and each file that logs would compile it anew, which takes longer than most files
// themselves.
#if FMT_VERSION < 100000  // of later ones the parameters differ
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>, basic_format_args<buffer_context<char>>,
                                      locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
#endif
