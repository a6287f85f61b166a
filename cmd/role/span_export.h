#pragma once
#include <memory>

#include "cmd/role/options/process_options.h"
#include "common/base/status.h"
#include "common/metrics/family_writer.h"
#include "common/tracing/span_exporter.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// What sends a process's spans to the collector of --otlp-endpoint; null where there is none.
absl::StatusOr<std::unique_ptr<SpanExporter>> NewSpanExporter(const TracingFlags& flags, const char* role_name,
                                                              const v1::Identity& identity);

void WriteMetrics(const SpanExporter::Counters& counters, FamilyWriter& writer);

}  // namespace winnow
