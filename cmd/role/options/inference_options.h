#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "cmd/role/options/cache_options.h"
#include "cmd/role/options/data_plane_options.h"
#include "cmd/role/options/process_options.h"
#include "cmd/role/options/selection_options.h"
#include "common/base/dtype.h"
#include "common/config/device_choice.h"
#include "common/config/fields.h"
#include "inference_rank/memory/prefill_mode.h"
#include "inference_rank/scheduler/scheduling_options.h"
#include "inference_rank/sequence/prefix_attention.h"

namespace winnow {

// How an inference rank fills its iterations.
struct SchedulingFlags : SchedulingOptions {
  void Declare(Fields& fields);
};

enum class TransportKind { kAuto, kInproc, kUcx, kP2p, kNccl };

// How inference ranks compute prompts.
struct PrefillFlags {
  PrefillMode mode = PrefillMode::kAuto;
  PrefixAttention prefix_attention = PrefixAttention::kAuto;
  bool keep_prefixes = true;
  uint32_t chunk = 0;
  int64_t memory_bytes = 0;

  void Declare(Fields& fields);
};

// What of a request an inference rank is there for.
enum class InferenceRole { kPrefill, kDecode, kBoth };
enum class SelectInPlace { kAuto, kOn, kOff };

struct InferenceProcessOptions {
  ProcessOptions process;
  JoinOptions join;
  std::string model;
  InferenceRole role = InferenceRole::kBoth;
  uint32_t decode_prefill_tokens = 256;
  TransportKind transport = TransportKind::kAuto;
  DataPlaneMode data_plane = DataPlaneMode::kAuto;
  SelectInPlace select_in_place = SelectInPlace::kAuto;
  DeviceChoice device;
  int tensor_parallel = 0;
  Dtype compute = Dtype::kBf16;
  Dtype kv_dtype = Dtype::kBf16;
  std::string isa = "auto";
  int threads = 0;
  uint32_t max_context = 0;
  uint32_t max_running = 64;
  PrefillFlags prefill;
  SchedulingFlags scheduling;
  std::chrono::microseconds resume_grace{30'000'000};
  int64_t slot_memory_bytes = 0;
  int64_t slot_host_memory_bytes = 0;
  SelectionOptions selection;
  CacheOptions cache;  // of the hosted cache rank, with transport inproc

  InferenceProcessOptions();
  void Declare(Fields& fields);
};

// Shared with `winnow up`.
void DeclareTransport(Fields& fields, TransportKind* transport);
void DeclareSelectInPlace(Fields& fields, SelectInPlace* select_in_place);
void DeclareDecodePrefillTokens(Fields& fields, uint32_t* decode_prefill_tokens);
void DeclareDevice(Fields& fields, DeviceChoice* device, int* tensor_parallel);
void DeclareMaxRunning(Fields& fields, uint32_t* max_running);
void DeclareResumeGrace(Fields& fields, std::chrono::microseconds* resume_grace);
void DeclareSlotMemory(Fields& fields, int64_t* memory_bytes, int64_t* host_memory_bytes);

}  // namespace winnow
