#pragma once
#include "kernels/plugin/device_table.h"

// Words that the two sides of an exchange raise for each other.
namespace winnow::test {

void Raise(device::Stream stream, const device::RaiseParams& params);
// Holds the calling thread until the flag has the value, there is an error or an order to abort, or four times the
// timeout is over, because these kernels are slow; what ends it otherwise than the flag is noted as the error.
void Wait(device::Stream stream, const device::WaitParams& params);

}  // namespace winnow::test
