#pragma once
#include <cuda_runtime.h>

// Inside the plugin. Functions of the driver are found at run time: nothing links it.
namespace winnow::device {

// The function of that name, as CUDA's `version` (12050 is 12.5) has it. False where the driver is older.
template <typename Function>
bool FindDriverFunction(const char* name, unsigned version, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  *function = reinterpret_cast<Function>(found);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess && found != nullptr;
}

}  // namespace winnow::device
