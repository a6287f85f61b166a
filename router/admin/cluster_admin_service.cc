#include "router/admin/cluster_admin_service.h"

#include "common/base/logging.h"
#include "common/rpc/grpc_status.h"
#include "router/admin/rank_duty.h"
#include "router/membership/rank_list.h"

namespace winnow {
namespace {

void SetOrders(const RankOrders& orders, v1::AdminRank* rank) {
  rank->set_duty(ToProto(orders.duty));
  rank->set_weight(orders.weight);
}

absl::Status Check(const v1::OrderRankRequest& request, const Registry& registry) {
  if (request.has_duty()) WINNOW_RETURN_IF_ERROR(FromProto(request.duty()).status());
  return registry.CheckOrder(request.rank(), request.has_weight() ? std::optional(request.weight()) : std::nullopt);
}

absl::Status Obey(const v1::OrderRankRequest& request, Registry* registry) {
  if (request.has_weight()) WINNOW_RETURN_IF_ERROR(registry->SetWeight(request.rank(), request.weight()));
  if (!request.has_duty()) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const RankDuty duty, FromProto(request.duty()));
  return registry->SetDuty(request.rank(), duty);
}

void LogOrder(const v1::OrderRankRequest& request) {
  if (request.has_duty()) {
    spdlog::info("an operator's order for {}: {}", request.rank(), v1::RankDuty_Name(request.duty()));
  }
  if (request.has_weight()) spdlog::info("an operator's order for {}: weight {}", request.rank(), request.weight());
}

}  // namespace

ClusterAdminServiceImpl::ClusterAdminServiceImpl(Parts parts) : parts_(std::move(parts)) {}

grpc::Status ClusterAdminServiceImpl::ListRanks(grpc::ServerContext*, const v1::ListRanksRequest*,
                                                v1::ListRanksResponse* response) {
  const AssignedCounts assigned = parts_.dispatcher->Assigned();
  std::map<std::string, RankOrders> absent = parts_.ranks->Orders();
  *response->mutable_router() = parts_.self;
  for (const RankRecord& record : parts_.ranks->Snapshot().ranks) {
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
  for (std::string& address : parts_.routers()) response->add_routers(std::move(address));
  response->set_moved_requests(parts_.dispatcher->counters().moved);
  return grpc::Status::OK;
}

grpc::Status ClusterAdminServiceImpl::OrderRank(grpc::ServerContext*, const v1::OrderRankRequest* request,
                                                v1::OrderRankResponse* response) {
  *response->mutable_router() = parts_.self;
  if (const absl::Status good = Check(*request, *parts_.ranks); !good.ok()) return ToGrpc(good);
  if (request->only_check()) return grpc::Status::OK;
  LogOrder(*request);
  if (parts_.shared_orders == nullptr) return ToGrpc(Obey(*request, parts_.ranks));
  const absl::Status shared = parts_.shared_orders->Take(*request);
  response->set_in_registry(shared.ok());
  if (!shared.ok()) response->set_registry_error(std::string(shared.message()));
  return grpc::Status::OK;
}

grpc::Status ClusterAdminServiceImpl::Reload(grpc::ServerContext*, const v1::ReloadRequest*,
                                             v1::ReloadResponse* response) {
  *response = parts_.reload();
  return grpc::Status::OK;
}

}  // namespace winnow
