#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/tracing/otlp_post.h"
#include "common/tracing/trace_span.h"

namespace winnow {

// Sends spans to a collector by OTLP/HTTP, in batches, from a thread of its own. Spans that the collector does not
// take, or that come while too many wait, are dropped and counted: who makes spans neither waits nor fails.
class SpanExporter final : public SpanSink {
 public:
  struct Options {
    OtlpEndpoint endpoint;
    SpanAttributes resource;  // of this process
    size_t max_queued = 4096;
    size_t max_batch = 512;
    std::chrono::milliseconds interval{1000};  // that a span waits for others at most
    std::chrono::milliseconds timeout{2000};   // of one POST
    // Called on the exporter's thread when the collector stops answering, and OK when it answers again; may be absent.
    std::function<void(const absl::Status&)> on_change = nullptr;
  };
  // Monotone counts.
  struct Counters {
    std::atomic<uint64_t> exported{0};
    std::atomic<uint64_t> dropped_queue{0};   // for want of room
    std::atomic<uint64_t> dropped_export{0};  // the collector did not take them
  };

  explicit SpanExporter(Options options);
  // Stop.
  ~SpanExporter() override;
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  void Add(TraceSpan span) override;
  // Sends what waits, for one timeout at most, and drops the rest. Idempotent; what is added later is dropped.
  void Stop();
  const Counters& counters() const { return counters_; }

 private:
  void Loop();
  void Send(const std::vector<TraceSpan>& batch, std::chrono::milliseconds timeout);

  const Options options_;
  Counters counters_;
  bool answered_ = true;  // the exporter's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TraceSpan> queue_;  // guarded by mutex_
  bool stopping_ = false;        // guarded by mutex_
  std::thread thread_;
};

}  // namespace winnow
