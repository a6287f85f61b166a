#include "common/tracing/span_exporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/tracing/otlp_json.h"

namespace winnow {

using Clock = std::chrono::steady_clock;

SpanExporter::SpanExporter(Options options) : options_(std::move(options)), thread_([this] { Loop(); }) {}

SpanExporter::~SpanExporter() {
  Stop();
}

void SpanExporter::Add(TraceSpan span) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() >= options_.max_queued) {
      counters_.dropped_queue.fetch_add(1);
      return;
    }
    queue_.push_back(std::move(span));
    // The thread looks by itself in time.
    if (queue_.size() < options_.max_batch) return;
  }
  changed_.notify_one();
}

void SpanExporter::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void SpanExporter::Loop() {
  Clock::time_point end = Clock::time_point::max();  // of the last batches
  std::vector<TraceSpan> batch;
  while (true) {
    batch.clear();
    bool is_last = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, options_.interval, [&] { return stopping_ || queue_.size() >= options_.max_batch; });
      is_last = stopping_;
      const size_t count = std::min(queue_.size(), options_.max_batch);
      std::move(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(count), std::back_inserter(batch));
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(count));
    }
    if (batch.empty()) {
      if (is_last) return;
      continue;
    }
    if (is_last) end = std::min(end, Clock::now() + options_.timeout);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    Send(batch, std::clamp(left, std::chrono::milliseconds(0), options_.timeout));
  }
}

void SpanExporter::Send(const std::vector<TraceSpan>& batch, std::chrono::milliseconds timeout) {
  const absl::Status sent = timeout.count() > 0
                                ? PostJson(options_.endpoint, OtlpJson(options_.resource, batch), timeout)
                                : absl::UnavailableError("the process stops");
  (sent.ok() ? counters_.exported : counters_.dropped_export).fetch_add(batch.size());
  if (std::exchange(answered_, sent.ok()) != sent.ok() && options_.on_change) options_.on_change(sent);
}

}  // namespace winnow
