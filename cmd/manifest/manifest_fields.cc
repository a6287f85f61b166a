#include "cmd/manifest/manifest_fields.h"

namespace winnow {
namespace {

constexpr ManifestField kFields[] = {
    {"cluster", "cluster"},
    {"registry", "registry"},
    {"registry_lease", "registry-lease"},
    {"transport", "transport"},
    {"threads", "threads"},

    {"model.path", "model"},
    {"model.id", "model-id"},
    {"model.tool_format", "tool-format"},
    {"model.reasoning_format", "reasoning-format"},
    {"model.max_context", "max-context"},
    {"model.compute", "compute"},
    {"model.kv_dtype", "kv-dtype"},

    {"router.count", "routers"},
    {"router.http", "http"},
    {"router.grpc", "grpc"},
    {"router.cors_origins", "cors-origins"},
    {"router.stream_keep_alive", "stream-keep-alive"},
    {"router.page", "page"},
    {"router.max_queue", "max-queue"},
    {"router.api_keys", "api-keys"},
    {"router.cache_shards", "cache-shards"},
    {"router.slow_start", "slow-start"},
    {"router.drain_delay", "drain-delay"},
    {"router.stop_grace", "stop-grace"},

    {"inference.ranks", "inference-ranks"},
    {"inference.prefill_ranks", "prefill-ranks"},
    {"inference.decode_ranks", "decode-ranks"},
    {"inference.decode_prefill_tokens", "decode-prefill-tokens"},
    {"inference.device", "device"},
    {"inference.tensor_parallel", "tensor-parallel"},
    {"inference.select_in_place", "select-in-place"},
    {"inference.max_running", "max-running"},
    {"inference.max_batch_tokens", "max-batch-tokens"},
    {"inference.max_inject_tokens", "max-inject-tokens"},
    {"inference.tpot_target", "tpot-target"},
    {"inference.age_bound", "age-bound"},
    {"inference.working_set_control", "working-set-control"},
    {"inference.prefill", "prefill"},
    {"inference.prefill_chunk", "prefill-chunk"},
    {"inference.prefill_memory", "prefill-memory"},
    {"inference.prefix_attention", "prefix-attention"},
    {"inference.keep_prefixes", "keep-prefixes"},
    {"inference.slot_memory", "slot-memory"},
    {"inference.slot_host_memory", "slot-host-memory"},
    {"inference.resume_grace", "resume-grace"},

    {"cache.ranks", "cache-ranks"},
    {"cache.replicas", "replicas"},
    {"cache.device", "cache-device"},
    {"cache.memory", "cache-memory"},
    {"cache.fast_memory", "fast-memory"},
    {"cache.scrub_bytes_per_s", "scrub-bytes-per-s"},
    {"cache.device_memory", "cache-device-memory"},
    {"cache.device_host_memory", "cache-device-host-memory"},
    {"cache.prefix_cache", "prefix-cache"},
    {"cache.prefix_cache_memory", "prefix-cache-memory"},

    {"selection.default", "selection"},
    {"selection.budget", "budget"},
    {"selection.sinks", "sinks"},
    {"selection.recent", "recent"},
    {"selection.pool_factor", "pool-factor"},
    {"selection.head_profile", "head-profile"},

    {"security.tls_cert", "tls-cert"},
    {"security.tls_key", "tls-key"},
    {"security.tls_ca", "tls-ca"},
    {"security.http_tls_cert", "http-tls-cert"},
    {"security.http_tls_key", "http-tls-key"},
    {"security.data_plane", "data-plane"},
    {"security.insecure", "insecure"},

    {"observability.metrics", "metrics"},
    {"observability.log_level", "log-level"},
    {"observability.log_format", "log-format"},
    {"observability.log_requests", "log-requests"},
    {"observability.metrics_aliases", "metrics-aliases"},
    {"observability.otlp_endpoint", "otlp-endpoint"},
    {"observability.trace_sample", "trace-sample"},
};

constexpr ManifestSection kSections[] = {
    {"model", "What is served."},
    {"router", "Where clients connect, and how much is taken from them."},
    {"inference", "The ranks that hold the weights and compute."},
    {"cache", "The ranks that hold the KV."},
    {"selection", "Which rows requests attend to that do not say."},
    {"security", "What is encrypted, and who may call whom."},
    {"observability", "Metrics, logs and traces."},
};

}  // namespace

std::span<const ManifestField> ManifestFields() {
  return kFields;
}

std::span<const ManifestSection> ManifestSections() {
  return kSections;
}

}  // namespace winnow
