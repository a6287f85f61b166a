#include "cmd/role/options/cache_options.h"

#include "cmd/role/options/model_options.h"
#include "cmd/role/own_address.h"

namespace winnow {

void CacheOptions::Declare(Fields& fields) {
  fields.Folder(
      "model", &model,
      "Folder of the model whose KV is held, for selections with projection on the cache rank: norms and query "
      "projections are loaded, and other models are refused. Empty = such selections are refused.");
  fields.Folder(
      "peer-model", &peer_model,
      "Folder of the model, or synthetic model, whose query projections the GPU holds for peer links that select "
      "with queries predicted in depth; empty = --model.");
  DeclareCompute(fields, &compute);
  fields.Bytes("memory", &memory_bytes,
               "Memory for KV blocks, all sequences together; a request whose context does not fit beside others "
               "waits, one that can never fit is refused. 0 = 30 % of what is free.");
  DeclareFastMemory(fields, &fast_memory_bytes);
  DeclareScrub(fields, &scrub_bytes_per_s);
  fields.Integer("threads", &threads, "Threads that score keys; 0 = one per core.", 0, 1024);
  fields.Duration("detached-ttl", &detached_ttl,
                  "How long the KV of a sequence outlives its inference rank, so that another can take it over.");
  DeclarePrefixCache(fields, &prefix_cache, &prefix_cache_memory_bytes);
  fields.Custom(
      "device", "auto|cpu|cuda[:N]",
      "Where keys are scored and rows selected. cuda: on GPU N, which keeps an 8-bit copy of the keys, while rows stay "
      "in host memory; auto: there if it answers and can, otherwise on the CPU, and the log says why not.",
      [this](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(device, ParseDeviceChoice(text));
        return device.more.empty() ? absl::OkStatus() : absl::InvalidArgumentError("a cache rank has one GPU");
      },
      [this] { return ToString(device); });
  fields.Bytes("device-memory", &device_memory_bytes,
               "Memory of the GPU: for the index of keys, and where there are peer links, three quarters for copies of "
               "sequences. 0 = nine tenths of what is free.");
  DeclareDeviceHostMemory(fields, "device-host-memory", &device_host_memory_bytes);
}

CacheProcessOptions::CacheProcessOptions() {
  process.rank = "cache-0";
  process.grpc.host = process.metrics.host = kAutoHost;
}

void CacheProcessOptions::Declare(Fields& fields) {
  process.Declare(fields);
  join.Declare(fields);
  DeclareDataPlane(fields, &data_plane);
  cache.Declare(fields);
}

void DeclarePrefixCache(Fields& fields, bool* prefix_cache, int64_t* memory_bytes) {
  fields.Bool("prefix-cache", prefix_cache,
              "Keep the KV of prompts, in blocks of 32 tokens, for later prompts of the same tenant that begin alike; "
              "answers are the same without.");
  fields.Bytes("prefix-cache-memory", memory_bytes,
               "Most memory, of that for KV blocks, which kept prompts may take while no request uses them; they give "
               "way to requests in any case. 0 = all of it.");
}

void DeclareFastMemory(Fields& fields, int64_t* memory_bytes) {
  fields.Bytes(
      "fast-memory", memory_bytes,
      "Memory of a fast tier before that for KV blocks: it holds the index of all keys, and copies of the blocks of "
      "rows that were read last, while all rows are kept in the other. Answers are the same. 0 = one tier.");
}

void DeclareScrub(Fields& fields, int64_t* bytes_per_s) {
  fields.Bytes("scrub-bytes-per-s", bytes_per_s,
               "Stored KV that is read again each second to find damaged memory before somebody needs it; rows that "
               "are sent are checked in any case. 0 = none.");
}

void DeclareDeviceHostMemory(Fields& fields, const char* name, int64_t* memory_bytes) {
  fields.Bytes(
      name, memory_bytes,
      "Host memory, pinned, from which a peer link pushes rows of sequences whose copy has no room in the cache "
      "rank's GPU; their keys stay in the GPU's memory. It comes on top of the memory for KV blocks and of "
      "--fast-memory. 0 = none: such sequences go by frames.");
}

}  // namespace winnow
