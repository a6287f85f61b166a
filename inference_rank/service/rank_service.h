#pragma once
#include <grpcpp/grpcpp.h>

#include "common/tracing/trace_span.h"
#include "inference_rank/engine/engine.h"
#include "inference_rank/service/resumable_requests.h"
#include "inference_rank/service/submit.h"
#include "winnow/v1/rank.grpc.pb.h"

namespace winnow {

// The thin RPC edge of an inference rank: unpacks Dispatch messages, hands sequences to the engine, writes events back.
class RankServiceImpl final : public v1::RankService::CallbackService {
 public:
  RankServiceImpl(Engine& engine, InferenceRankMetrics& metrics, const SubmitLimits& limits,
                  const ResumeLimits& resume_limits = {}, SpanSink* spans = nullptr);
  grpc::ServerBidiReactor<v1::DispatchRequest, v1::DispatchResponse>* Dispatch(
      grpc::CallbackServerContext* context) override;

 private:
  Engine& engine_;
  const SubmitLimits limits_;
  SpanSink* const spans_;  // null: nothing is traced
  ResumableRequests resumable_;
};

}  // namespace winnow
