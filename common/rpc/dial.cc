#include "common/rpc/dial.h"

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/identity.h"
#include "winnow/v1/admin.grpc.pb.h"

namespace winnow {

absl::Status Dial(const v1::Identity& target, const std::string& hosted_by, std::chrono::milliseconds timeout,
                  const Credentials& credentials) {
  const auto stub = v1::AdminService::NewStub(NewChannel(target.address(), credentials));
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::GetServerInfoResponse info;
  const grpc::Status status = stub->GetServerInfo(&context, {}, &info);
  if (!status.ok()) {
    const bool silent = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    const std::string why = silent ? absl::StrCat("no answer within ", timeout.count(), " ms") : status.error_message();
    return absl::UnavailableError(absl::StrCat("cannot reach ", target.rank(), " at ", target.address(), ": ", why));
  }
  const v1::Identity& answering = info.identity();
  const bool is_host = !hosted_by.empty() && answering.rank() == hosted_by;
  if (is_host || (answering.rank() == target.rank() && answering.incarnation() == target.incarnation())) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("cannot reach ", ToString(target), " at ", target.address(), ": ",
                                             ToString(answering), " of cluster \"", answering.cluster(),
                                             "\" answers there"));
}

}  // namespace winnow
