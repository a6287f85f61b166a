#include "cmd/role/options/opentelemetry.h"

#include <cstdlib>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/tracing/otlp_post.h"

namespace winnow {
namespace {

class Variables {
 public:
  explicit Variables(const EnvironmentReader& reader) : reader_(reader) {}
  // Empty is as good as not set, by OpenTelemetry's rules.
  std::string operator[](const char* name) const {
    const char* const value = reader_(name);
    return value == nullptr ? "" : value;
  }
  std::string FirstOf(const char* special, const char* general) const {
    const std::string value = (*this)[special];
    return value.empty() ? (*this)[general] : value;
  }

 private:
  const EnvironmentReader& reader_;
};

constexpr std::string_view kTracesPath = "/v1/traces";

// The endpoint as --otlp-endpoint has it: without the path of traces.
absl::StatusOr<std::string> EndpointOf(const Variables& variables) {
  std::string traces = variables["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
  if (traces.empty()) return variables["OTEL_EXPORTER_OTLP_ENDPOINT"];
  if (!traces.ends_with(kTracesPath)) {
    return absl::InvalidArgumentError(
        absl::StrCat("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is \"", traces, "\", whose path does not end in /v1/traces"));
  }
  traces.resize(traces.size() - kTracesPath.size());
  return traces;
}

absl::StatusOr<std::string> UsableEndpointOf(const Variables& variables) {
  if (absl::EqualsIgnoreCase(variables["OTEL_SDK_DISABLED"], "true")) return "";
  const std::string exporter = variables["OTEL_TRACES_EXPORTER"];
  if (exporter == "none") return "";
  WINNOW_ASSIGN_OR_RETURN(std::string endpoint, EndpointOf(variables));
  if (endpoint.empty()) return "";
  const std::string protocol = variables.FirstOf("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL");
  if (protocol == "grpc") {
    return absl::InvalidArgumentError(
        "OTEL_EXPORTER_OTLP_PROTOCOL is grpc: only OTLP/HTTP in JSON is spoken; set it to http/json, with the "
        "collector's port for HTTP (4318)");
  }
  const absl::Status good = OtlpEndpoint::Parse(endpoint).status();
  if (!good.ok()) return Annotate(good, "OTEL_EXPORTER_OTLP_ENDPOINT");
  return endpoint;
}

// The share of the traces that begin here. Every one of OpenTelemetry's samplers heeds the parent here, as the ones
// called parentbased_... do there.
double SampleOf(const Variables& variables, double otherwise) {
  const std::string name = variables["OTEL_TRACES_SAMPLER"];
  std::string_view sampler = name;
  if (constexpr std::string_view kParentBased = "parentbased_"; sampler.starts_with(kParentBased)) {
    sampler.remove_prefix(kParentBased.size());
  }
  if (sampler == "always_on") return 1;
  if (sampler == "always_off") return 0;
  double share = 1;
  const std::string argument = variables["OTEL_TRACES_SAMPLER_ARG"];
  const bool is_share = absl::SimpleAtod(argument, &share) && share >= 0 && share <= 1;
  return sampler == "traceidratio" ? (is_share ? share : 1) : otherwise;
}

}  // namespace

const char* ReadEnvironment(const char* name) {
  return std::getenv(name);
}

OpenTelemetryDefaults OpenTelemetryDefaults::Read(const EnvironmentReader& variable) {
  const Variables variables(variable);
  OpenTelemetryDefaults defaults;
  absl::StatusOr<std::string> endpoint = UsableEndpointOf(variables);
  if (endpoint.ok()) {
    defaults.tracing.otlp_endpoint = *std::move(endpoint);
  } else {
    defaults.note = std::string(endpoint.status().message());
  }
  defaults.tracing.sample = SampleOf(variables, defaults.tracing.sample);
  return defaults;
}

}  // namespace winnow
