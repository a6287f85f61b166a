#include "cmd/role/options/process_options.h"

#include "absl/strings/str_replace.h"
#include "cmd/role/own_address.h"
#include "common/config/host_address.h"
#include "common/tracing/otlp_post.h"

namespace winnow {

using namespace std::chrono_literals;

namespace {

constexpr std::chrono::seconds kLeastLease{2};
constexpr std::chrono::seconds kLongestLease{3600};

}  // namespace

void DeclareRegistry(Fields& fields, std::optional<RegistryUrl>* registry, std::string help) {
  fields.Custom(
      "registry", "etcd://HOST:PORT[,...][/PREFIX]", std::move(help),
      [registry](std::string_view text) -> absl::Status {
        *registry = std::nullopt;
        if (text.empty()) return absl::OkStatus();
        WINNOW_ASSIGN_OR_RETURN(*registry, RegistryUrl::Parse(text));
        return absl::OkStatus();
      },
      [registry] { return *registry ? (*registry)->ToString() : std::string(); });
}

void DiscoveryOptions::Declare(Fields& fields) {
  DeclareRegistry(
      fields, &registry,
      "Registry in which routers are found by ranks: members of an etcd cluster (3.4 or later), and what all keys "
      "begin with (winnow). etcds:// is TLS, with --tls-cert, --tls-key and --tls-ca. What runs goes on without it.");
  fields.Custom(
      "registry-lease", "DURATION",
      "How long a process that is silent stays in the registry; whole seconds from 2s to 1h.",
      [this](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(const std::chrono::microseconds duration, ParseDuration(text));
        if (duration < kLeastLease || duration > kLongestLease || duration % std::chrono::seconds(1) != 0us) {
          return absl::InvalidArgumentError(
              absl::StrCat("expected whole seconds from 2s to 1h, got \"", AbslSv(text), "\""));
        }
        lease = duration;
        return absl::OkStatus();
      },
      [this] { return FormatDuration(lease); });
}

void JoinOptions::Declare(Fields& fields) {
  fields.Custom(
      "router", "HOST:PORT[,...]",
      "gRPC addresses of routers; the rank registers with all of them, and a name with several addresses stands for "
      "all of these. Empty = those in the registry or, without --registry, 127.0.0.1:8001.",
      [this](std::string_view text) -> absl::Status {
        routers.clear();
        if (text.empty()) return absl::OkStatus();
        WINNOW_ASSIGN_OR_RETURN(routers, ParseHostPorts(text));
        return absl::OkStatus();
      },
      [this] { return ToString(routers); });
  discovery.Declare(fields);
  DeclareAdvertise(fields, &advertise);
}

std::vector<HostPort> JoinOptions::Routers() const {
  if (!routers.empty() || discovery.registry) return routers;
  return {{"127.0.0.1", 8001}};
}

std::vector<HostPort> JoinOptions::Landmarks() const {
  return routers.empty() && discovery.registry ? discovery.registry->endpoints : Routers();
}

void DeclareAdvertise(Fields& fields, std::string* advertise) {
  fields.Custom(
      "advertise", "HOST[:PORT]",
      "Where other processes reach this one, if not where it listens (--grpc); without a port, the one of --grpc. "
      "Empty = the address that it listens on, or, where that is all of them, the one towards the router; of routers, "
      "for the registry alone, the one towards that.",
      [advertise](std::string_view text) {
        *advertise = std::string(text);
        return CheckAdvertise(*advertise);
      },
      [advertise] { return *advertise; });
}

void SecurityOptions::Declare(Fields& fields) {
  fields.File(
      "tls-cert", &tls_cert,
      "Certificate (PEM) of the process for gRPC, with the URI name spiffe://winnow/ROLE; \"{role}\" in the path, "
      "here and below, stands for router, inference-rank or cache-rank. Changed files are read within seconds. "
      "Empty = nothing is encrypted, and whoever reaches a port may use it.");
  fields.File("tls-key", &tls_key, "Key (PEM) of --tls-cert.");
  fields.File("tls-ca", &tls_ca, "Certificates (PEM) of those who sign the certificates of the cluster.");
  fields.Bool("insecure", &insecure,
              "Listen without TLS on addresses that other machines reach: for private networks alone. Without it such "
              "addresses are refused, but for --metrics.");
}

absl::StatusOr<TlsFiles> SecurityOptions::FilesFor(std::string_view role) const {
  const auto path = [&](const std::string& text) { return absl::StrReplaceAll(text, {{"{role}", AbslSv(role)}}); };
  TlsFiles files{.certificate = path(tls_cert), .key = path(tls_key), .authorities = path(tls_ca)};
  if (!files.empty() && (tls_cert.empty() || tls_key.empty() || tls_ca.empty())) {
    return absl::InvalidArgumentError("--tls-cert, --tls-key and --tls-ca need each other");
  }
  return files;
}

absl::Status SecurityOptions::CheckExposure(std::string_view option, const HostPort& listen, bool encrypted) const {
  if (encrypted || insecure || IsLoopbackHost(listen.host) || listen.host == kAutoHost) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--", AbslSv(option), "=", listen.ToString(), " is reached from other machines, and without TLS: set ",
      option == "http" ? "--http-tls-cert" : "--tls-cert, --tls-key and --tls-ca",
      ", or --insecure where the network is private"));
}

void LogFlags::Declare(Fields& fields, const std::string& whose) {
  fields.Custom(
      "log-level", "LEVEL", absl::StrCat(whose, ": trace, debug, info, warning, error or off."),
      [this](std::string_view text) {
        level = std::string(text);
        return CheckLogLevel(level);
      },
      [this] { return level; });
  fields.Enum("log-format", &format, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
              "Lines for people, or a JSON object each, with time (UTC), level, role, rank and message.");
}

void TracingFlags::Declare(Fields& fields) {
  fields.Custom(
      "otlp-endpoint", "URL",
      "Where spans of traced requests go: http://HOST:PORT of an OpenTelemetry collector, which gets them by OTLP/HTTP "
      "in JSON at /v1/traces. Empty = nowhere: nothing is traced. Without it "
      "OTEL_EXPORTER_OTLP_ENDPOINT and its like are read.",
      [this](std::string_view text) {
        otlp_endpoint = std::string(text);
        return text.empty() ? absl::OkStatus() : OtlpEndpoint::Parse(text).status();
      },
      [this] { return otlp_endpoint; });
  fields.Number("trace-sample", &sample,
                "Of routers: share of the requests that are traced where their clients name no trace; one that a "
                "client names is traced if its `traceparent` says so.",
                0, 1);
}

void ProcessOptions::Declare(Fields& fields) {
  fields.Text("cluster", &cluster, "Name that all processes of a cluster share; others are refused.");
  fields.Text("rank", &rank, "Name of this process, unique among those of its role.");
  fields.Address(
      "grpc", &grpc,
      "Where the gRPC server listens. Port 0 takes a free one. Of ranks, the host auto is the address of this "
      "machine towards the router: loopback where the router is on this machine, too.");
  fields.Address("metrics", &metrics,
                 "Where HTTP answers /metrics, and the probes /ready, /live and /health; hosts as for --grpc.");
  security.Declare(fields);
  log.Declare(fields, "Of this process");
  tracing.Declare(fields);
  fields.Integer("report-fd", &report_fd, "Descriptor on which to tell a parent process the addresses and readiness.",
                 -1, 1 << 20);
}

}  // namespace winnow
