#pragma once
#include <cstdint>

namespace winnow {

// A TCP port of 127.0.0.1 that nobody uses and that this process has not given out before. It lies below those that the
// kernel gives to connections and to whoever binds to port 0, so that it stays free until a test's process takes it,
// and while that is restarted.
uint16_t FreePort();

}  // namespace winnow
