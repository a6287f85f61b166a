#include "cmd/role/span_export.h"

#include <unistd.h>

#include <array>

#include "cmd/role/options/opentelemetry.h"
#include "common/base/logging.h"
#include "common/metrics/version.h"
#include "common/tracing/otlp_resource.h"

namespace winnow {
namespace {

// By OpenTelemetry's names.
SpanAttributes ResourceOf(const char* role_name, const v1::Identity& identity) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return {{"service.name", absl::StrCat("winnow-", role_name)},
          {"service.namespace", identity.cluster()},
          {"service.instance.id", identity.rank()},
          {"service.version", std::string(Version())},
          {"winnow.role", std::string(role_name)},
          {"host.name", std::string(host.data())},
          {"process.pid", int64_t{getpid()}}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanExporter>> NewSpanExporter(const TracingFlags& flags, const char* role_name,
                                                              const v1::Identity& identity) {
  if (flags.otlp_endpoint.empty()) {
    if (const std::string note = OpenTelemetryDefaults::Read().note; !note.empty()) {
      spdlog::warn("requests are not traced: {}", note);
    }
    return nullptr;
  }
  SpanExporter::Options options;
  absl::StatusOr<OtlpEndpoint> endpoint = OtlpEndpoint::Parse(flags.otlp_endpoint);
  if (!endpoint.ok()) return Annotate(endpoint.status(), "--otlp-endpoint");
  options.endpoint = *std::move(endpoint);
  const char* const service_name = ReadEnvironment("OTEL_SERVICE_NAME");
  const char* const attributes = ReadEnvironment("OTEL_RESOURCE_ATTRIBUTES");
  options.resource = WithEnvironment(ResourceOf(role_name, identity), service_name == nullptr ? "" : service_name,
                                     attributes == nullptr ? "" : attributes);
  options.on_change = [url = options.endpoint.ToString()](const absl::Status& status) {
    if (status.ok()) {
      spdlog::info("{} takes traces again", url);
    } else {
      spdlog::warn("{} takes no traces, and they are dropped: {}", url, std::string(status.message()));
    }
  };
  return std::make_unique<SpanExporter>(std::move(options));
}

void WriteMetrics(const SpanExporter::Counters& counters, FamilyWriter& writer) {
  writer.Counter("winnow_trace_spans_exported_total", "Spans of traced requests that the collector has taken.",
                 static_cast<double>(counters.exported.load()), {});
  const char* dropped = "Spans that were dropped: too many waited, or the collector did not take them.";
  writer.Counter("winnow_trace_spans_dropped_total", dropped, static_cast<double>(counters.dropped_queue.load()),
                 {{"reason", "queue"}});
  writer.Counter("winnow_trace_spans_dropped_total", dropped, static_cast<double>(counters.dropped_export.load()),
                 {{"reason", "export"}});
}

}  // namespace winnow
