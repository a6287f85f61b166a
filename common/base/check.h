#pragma once
#include <cstdio>
#include <cstdlib>

// WINNOW_CHECK is for bugs only: a false condition means that this process is wrong, not its input.
#define WINNOW_CHECK(condition)                                                          \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
