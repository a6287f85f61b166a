#pragma once
#include <signal.h>

#include <chrono>

namespace winnow {

// SIGINT and SIGTERM: what people and supervisors end a process with.
sigset_t StopSignals();

// Blocks them in the calling thread and those that it starts from now on, so that some thread can wait for them. To be
// called first in main, before other threads exist.
void BlockStopSignals();

// Waits up to `time` for a stop signal, which is blocked in all threads. Its number; 0 when none has come.
int StopSignalWithin(std::chrono::milliseconds time);

// Ends this process by the signal `number` as if nothing had been done about it.
void EndByStopSignal(int number);

}  // namespace winnow
