#include "router/admin/cluster_admin_service.h"

#include "common/rpc/grpc_status.h"
#include "router/membership/rank_list.h"
#include "spdlog/spdlog.h"

namespace winnow {
namespace {

v1::RankDuty ToProto(RankDuty duty) {
  switch (duty) {
    case RankDuty::kServe:
      return v1::RANK_DUTY_SERVE;
    case RankDuty::kCordoned:
      return v1::RANK_DUTY_CORDONED;
    case RankDuty::kDrain:
      return v1::RANK_DUTY_DRAIN;
  }
  return v1::RANK_DUTY_UNSPECIFIED;
}

absl::StatusOr<RankDuty> FromProto(v1::RankDuty duty) {
  switch (duty) {
    case v1::RANK_DUTY_SERVE:
      return RankDuty::kServe;
    case v1::RANK_DUTY_CORDONED:
      return RankDuty::kCordoned;
    case v1::RANK_DUTY_DRAIN:
      return RankDuty::kDrain;
    default:
      return absl::InvalidArgumentError(absl::StrCat("duty: this router does not know ", static_cast<int>(duty)));
  }
}

void SetOrders(const RankOrders& orders, v1::AdminRank* rank) {
  rank->set_duty(ToProto(orders.duty));
  rank->set_weight(orders.weight);
}

absl::Status Obey(const v1::OrderRankRequest& request, Registry* registry) {
  if (request.has_weight()) WINNOW_RETURN_IF_ERROR(registry->SetWeight(request.rank(), request.weight()));
  if (!request.has_duty()) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const RankDuty duty, FromProto(request.duty()));
  return registry->SetDuty(request.rank(), duty);
}

}  // namespace

ClusterAdminServiceImpl::ClusterAdminServiceImpl(v1::Identity self, Registry* registry, const Dispatcher* dispatcher,
                                                 std::function<v1::ReloadResponse()> reload)
    : self_(std::move(self)), registry_(registry), dispatcher_(dispatcher), reload_(std::move(reload)) {}

grpc::Status ClusterAdminServiceImpl::ListRanks(grpc::ServerContext*, const v1::ListRanksRequest*,
                                                v1::ListRanksResponse* response) {
  const AssignedCounts assigned = dispatcher_->Assigned();
  std::map<std::string, RankOrders> absent = registry_->Orders();
  *response->mutable_router() = self_;
  for (const RankRecord& record : registry_->Snapshot().ranks) {
    v1::AdminRank* rank = response->add_ranks();
    *rank->mutable_identity() = record.identity;
    rank->set_state(StateOf(record));
    SetOrders(record.orders, rank);
    *rank->mutable_load() = record.load;
    const auto here = assigned.find(KeyOf(record.identity));
    rank->set_requests(here == assigned.end() ? 0 : here->second.requests);
    rank->set_hosted_by_rank(record.hosted_by_rank);
    absent.erase(record.identity.rank());
  }
  for (const auto& [name, orders] : absent) {
    v1::AdminRank* rank = response->add_ranks();
    rank->mutable_identity()->set_rank(name);
    rank->set_state("absent");
    SetOrders(orders, rank);
  }
  response->set_moved_requests(dispatcher_->counters().moved);
  return grpc::Status::OK;
}

grpc::Status ClusterAdminServiceImpl::OrderRank(grpc::ServerContext*, const v1::OrderRankRequest* request,
                                                v1::OrderRankResponse*) {
  const absl::Status obeyed = Obey(*request, registry_);
  if (obeyed.ok() && request->has_duty()) {
    spdlog::info("an operator's order for {}: {}", request->rank(), v1::RankDuty_Name(request->duty()));
  }
  if (obeyed.ok() && request->has_weight()) {
    spdlog::info("an operator's order for {}: weight {}", request->rank(), request->weight());
  }
  return ToGrpc(obeyed);
}

grpc::Status ClusterAdminServiceImpl::Reload(grpc::ServerContext*, const v1::ReloadRequest*,
                                             v1::ReloadResponse* response) {
  *response = reload_();
  return grpc::Status::OK;
}

}  // namespace winnow
