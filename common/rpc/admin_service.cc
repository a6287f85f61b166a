#include "common/rpc/admin_service.h"

#include <algorithm>
#include <chrono>

#include "common/rpc/dial.h"
#include "common/rpc/grpc_status.h"

namespace winnow {

namespace {

constexpr std::chrono::milliseconds kLongestReach{1000};

// What to add to the steady clock's nanoseconds to get those since the Unix epoch.
int64_t SteadyToUnixNanos() {
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  const auto steady_now = Timeline::Clock::now().time_since_epoch();
  return duration_cast<nanoseconds>(unix_now).count() - duration_cast<nanoseconds>(steady_now).count();
}

}  // namespace

AdminServiceImpl::AdminServiceImpl(v1::GetServerInfoResponse info, std::function<v1::RankLoad()> load,
                                   std::vector<NamedTimeline> timelines, Credentials credentials)
    : info_(std::move(info)),
      load_(std::move(load)),
      timelines_(std::move(timelines)),
      credentials_(std::move(credentials)) {}

grpc::Status AdminServiceImpl::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                             v1::GetServerInfoResponse* response) {
  *response = info_;
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*, v1::GetLoadResponse* response) {
  *response->mutable_load() = load_();
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::Reach(grpc::ServerContext* context, const v1::ReachRequest* request,
                                     v1::ReachResponse*) {
  // The caller is to learn the reason before its own time is over.
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(context->deadline() - std::chrono::system_clock::now());
  return ToGrpc(Dial(request->target(), /*hosted_by=*/"", std::clamp(left * 3 / 4, kLongestReach / 100, kLongestReach),
                     credentials_));
}

grpc::Status AdminServiceImpl::StartTimeline(grpc::ServerContext*, const v1::StartTimelineRequest*,
                                             v1::StartTimelineResponse*) {
  if (timelines_.empty()) {
    return {grpc::StatusCode::FAILED_PRECONDITION, "this process has no data-path thread to record"};
  }
  for (const NamedTimeline& named : timelines_) named.timeline->Start();
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::StopTimeline(grpc::ServerContext*, const v1::StopTimelineRequest*,
                                            v1::StopTimelineResponse* response) {
  *response->mutable_identity() = info_.identity();
  const int64_t to_unix_ns = SteadyToUnixNanos();
  for (const NamedTimeline& named : timelines_) {
    const Timeline::Recording recording = named.timeline->Stop();
    v1::TimelineThread* thread = response->add_threads();
    thread->set_name(named.thread);
    thread->set_dropped(recording.dropped);
    for (const TimelineEvent& event : recording.events) {
      v1::TimelineEvent* out = thread->add_events();
      out->set_span(std::string(SpanName(event.span)));
      out->set_start_unix_nanos(static_cast<uint64_t>(event.start_ns + to_unix_ns));
      out->set_duration_ns(event.duration_ns);
      if (event.layer != kNoLayer) out->set_layer(event.layer);
      out->set_plan(event.plan);
      out->set_rows(event.rows);
    }
  }
  return grpc::Status::OK;
}

}  // namespace winnow
