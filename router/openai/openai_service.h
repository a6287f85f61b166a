#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "router/generation/generation.h"
#include "router/generation/served_model.h"
#include "router/generation/text_codec.h"
#include "router/http/route_table.h"
#include "router/openai/openai_hooks.h"

namespace winnow {

struct OpenAiOptions {
  // Deadline of a request that names none in x-request-timeout-ms, and the longest it may name.
  std::chrono::milliseconds default_timeout = std::chrono::minutes(10);
  std::chrono::milliseconds max_timeout = std::chrono::hours(1);
  // Bodies up to this size are parsed and tokenized on the connection's thread, larger ones on a thread of their own
  // pool, so that a long prompt does not hold up other connections.
  size_t inline_body_bytes = 16 << 10;
  int num_workers = 2;
  // A stream that has had nothing to say for so long sends a comment, which also begins the response: an error that
  // comes later is an event of the stream and no status. 0: never.
  std::chrono::milliseconds stream_keep_alive = std::chrono::seconds(15);
};

struct OpenAiCallbacks {
  // OK when a request would be served now; else why not. Must not block.
  std::function<absl::Status()> ready;
  // Text of GET /metrics (Prometheus exposition format). On a worker thread.
  std::function<std::string()> metrics;
  // Whose request it is; absent: TenantOf tells callers apart, and anybody may do anything.
  Authenticator authenticate = nullptr;
  OpenAiHooks hooks;
};

// The OpenAI-compatible API:
//
//   POST /v1/completions, /v1/chat/completions    whole or as server-sent events
//   POST /v1/responses                            the same, as items
//   GET  /v1/models, /v1/models/{id}
//   POST /tokenize, /detokenize                   as vLLM has them
//   POST /abort                                   ends a resumable request by its token
//   GET  /health, /ping, /ready, /version, /metrics
//
// Stop the HTTP server before destroying it.
class OpenAiService {
 public:
  // `codec` and `generation` must outlive the service. `model` is asked for each request, from several threads at once:
  // limits depend on the ranks that are there.
  OpenAiService(std::function<ServedModel()> model, const TextCodec* codec, Generation* generation,
                OpenAiCallbacks callbacks, OpenAiOptions options = {});
  OpenAiService(ServedModel model, const TextCodec* codec, Generation* generation, OpenAiCallbacks callbacks,
                OpenAiOptions options = {});
  ~OpenAiService();

  void AddRoutes(RouteTable* routes);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
