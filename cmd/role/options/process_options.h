#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/fields.h"
#include "common/discovery/registry_url.h"
#include "common/log/log.h"
#include "common/tls/tls_files.h"

namespace winnow {

// Where processes of a cluster find each other, beside the addresses that they are told.
struct DiscoveryOptions {
  std::optional<RegistryUrl> registry;
  std::chrono::microseconds lease{10'000'000};

  void Declare(Fields& fields);
};

void DeclareRegistry(Fields& fields, std::optional<RegistryUrl>* registry, std::string help);

// How a process finds others, and where these reach it.
struct JoinOptions {
  std::vector<HostPort> routers;  // as told; of ranks
  DiscoveryOptions discovery;
  std::string advertise;

  // Of ranks.
  void Declare(Fields& fields);
  // Those told or, where there are none and no registry, the one that listens on this machine by default.
  std::vector<HostPort> Routers() const;
  // On the way to which this machine's address is the one that others reach: routers or, without any, the registry.
  std::vector<HostPort> Landmarks() const;
};

// Whom a process takes calls from, and what it encrypts.
struct SecurityOptions {
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  bool insecure = false;

  void Declare(Fields& fields);
  // With "{role}" in the paths replaced. INVALID_ARGUMENT, where some are given and others are missing.
  absl::StatusOr<TlsFiles> FilesFor(std::string_view role) const;
  // FAILED_PRECONDITION for an address that other machines reach while `encrypted` is false and nothing allows it;
  // `option` is the one that says where to listen.
  absl::Status CheckExposure(std::string_view option, const HostPort& listen, bool encrypted) const;
};

// What a process logs, and how.
struct LogFlags {
  std::string level = "info";
  LogFormat format = LogFormat::kText;

  // `whose`: what the help says that they are for.
  void Declare(Fields& fields, const std::string& whose);
};

// Where a process sends the spans of traced requests.
struct TracingFlags {
  std::string otlp_endpoint;  // empty: nowhere
  double sample = 1;          // of the requests that name no trace of their own

  void Declare(Fields& fields);
};

// Of every process.
struct ProcessOptions {
  std::string cluster = "local";
  std::string rank;
  HostPort grpc{"127.0.0.1", 0};
  HostPort metrics{"127.0.0.1", 0};
  SecurityOptions security;
  LogFlags log;
  TracingFlags tracing;
  int report_fd = -1;

  void Declare(Fields& fields);
};

// Shared by ranks and routers.
void DeclareAdvertise(Fields& fields, std::string* advertise);

}  // namespace winnow
