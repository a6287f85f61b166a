#pragma once
#include <functional>
#include <string>

#include "cmd/role/options/process_options.h"

namespace winnow {

// The value of an environment variable; null where it is not set.
using EnvironmentReader = std::function<const char*(const char* name)>;
const char* ReadEnvironment(const char* name);

// What OpenTelemetry's environment variables ask of a program that traces requests: the defaults of options. An
// endpoint that this one cannot send to is left out, because it may be there for other programs.
struct OpenTelemetryDefaults {
  TracingFlags tracing;
  std::string note;  // why an endpoint was left out

  static OpenTelemetryDefaults Read(const EnvironmentReader& variable = ReadEnvironment);
};

}  // namespace winnow
