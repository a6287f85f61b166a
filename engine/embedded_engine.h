#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace winnow {

class Client;  // winnow/client.h

struct EmbeddedEngineOptions {
  std::string model_dir;
  std::string selection = "auto";   // preset or specification of requests that name none; "auto": by the model
  uint32_t budget_tokens = 0;       // selected rows per head, at most; 0: that of the selection
  uint32_t max_context_tokens = 0;  // 0: the model's
  std::string device = "auto";      // "cpu", "cuda:1", or "auto": a GPU where there is one that can
  int threads = 0;                  // of computation; 0: as many as the process may use
  int64_t cache_memory_bytes = 0;   // for KV; 0: a share of what is free
};

// A model that this process serves to itself: router, inference rank and cache rank of a cluster, in one process, with
// all that they do for a request (queue, batches, samples, shared prefixes, chat template). There is no HTTP. The parts
// talk over loopback ports of the machine, which are chosen freely and take calls from whoever may connect to them.
// What they log goes to spdlog's default logger.
//
//   absl::StatusOr<std::unique_ptr<winnow::EmbeddedEngine>> engine = winnow::EmbeddedEngine::Load({.model_dir =
//   "models/demo"});
//   (*engine)->client().Generate(winnow::ChatRequest({{"user", "Why is the sky blue?"}})).ReadAll();
class EmbeddedEngine {
 public:
  // Returns when requests are served. Errors say what of the model or the options is wrong, or what does not fit.
  static absl::StatusOr<std::unique_ptr<EmbeddedEngine>> Load(const EmbeddedEngineOptions& options);
  // Answers under way end with UNAVAILABLE.
  ~EmbeddedEngine();

  // For requests, as to any server. Copies may outlive the engine: their calls are UNAVAILABLE then.
  const Client& client() const { return *client_; }

 private:
  struct RouterPart;
  struct RankPart;
  EmbeddedEngine();

  std::unique_ptr<RouterPart> router_;
  std::unique_ptr<RankPart> rank_;
  std::unique_ptr<Client> client_;
};

}  // namespace winnow
