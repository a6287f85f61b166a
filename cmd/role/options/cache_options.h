#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "cmd/role/options/data_plane_options.h"
#include "cmd/role/options/process_options.h"
#include "common/base/dtype.h"
#include "common/config/device_choice.h"
#include "common/config/fields.h"

namespace winnow {

// Memory and threads of a cache rank, alone or hosted.
struct CacheOptions {
  std::string model;
  std::string peer_model;
  Dtype compute = Dtype::kBf16;
  int64_t memory_bytes = 0;
  int64_t fast_memory_bytes = 0;
  int64_t scrub_bytes_per_s = int64_t{16} << 20;
  int threads = 0;
  std::chrono::microseconds detached_ttl{60'000'000};
  bool prefix_cache = true;
  int64_t prefix_cache_memory_bytes = 0;
  DeviceChoice device{DeviceChoice::Kind::kCpu, 0};
  int64_t device_memory_bytes = 0;
  int64_t device_host_memory_bytes = 0;

  void Declare(Fields& fields);
};

struct CacheProcessOptions {
  ProcessOptions process;
  JoinOptions join;
  DataPlaneMode data_plane = DataPlaneMode::kAuto;
  CacheOptions cache;

  CacheProcessOptions();
  void Declare(Fields& fields);
};

// Shared with `winnow up`.
void DeclarePrefixCache(Fields& fields, bool* prefix_cache, int64_t* memory_bytes);
void DeclareFastMemory(Fields& fields, int64_t* memory_bytes);
void DeclareScrub(Fields& fields, int64_t* bytes_per_s);
void DeclareDeviceHostMemory(Fields& fields, const char* name, int64_t* memory_bytes);

}  // namespace winnow
