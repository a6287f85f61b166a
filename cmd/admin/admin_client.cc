#include "cmd/admin/admin_client.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "absl/strings/str_join.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"

namespace winnow {
namespace {

constexpr std::chrono::seconds kAnswerLimit{10};

absl::Status OfRouter(const grpc::Status& status, const std::string& server) {
  return Annotate(FromGrpc(status), "router at " + server);
}

absl::Status CheckKnown(const RouterRanks& router, const std::string& rank) {
  std::set<std::string> names;
  for (const v1::AdminRank& each : router.list.ranks()) names.insert(each.identity().rank());
  if (names.contains(rank)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("router at ", router.server, ": there is no rank \"", rank, "\"; ",
                                          names.empty() ? "none has joined" : "there are ",
                                          absl::StrJoin(names, ", ")));
}

}  // namespace

AdminClient::AdminClient(const std::vector<HostPort>& servers, const Credentials& credentials) {
  for (const HostPort& server : servers) {
    const std::string address = server.ToString();
    routers_.push_back({address, v1::ClusterAdminService::NewStub(NewChannel(address, credentials))});
  }
}

absl::StatusOr<std::vector<RouterRanks>> AdminClient::List() const {
  std::vector<RouterRanks> lists;
  for (const Router& router : routers_) {
    grpc::ClientContext context;
    SetTimeout(context, kAnswerLimit);
    lists.push_back({router.server, {}});
    WINNOW_RETURN_IF_ERROR(
        OfRouter(router.stub->ListRanks(&context, v1::ListRanksRequest(), &lists.back().list), router.server));
  }
  return lists;
}

absl::Status AdminClient::Order(const std::vector<RankOrder>& orders) const {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<RouterRanks> lists, List());
  for (const RouterRanks& router : lists) {
    for (const RankOrder& order : orders) WINNOW_RETURN_IF_ERROR(CheckKnown(router, order.rank));
  }
  for (const Router& router : routers_) {
    for (const RankOrder& order : orders) {
      v1::OrderRankRequest request;
      request.set_rank(order.rank);
      if (order.duty) request.set_duty(*order.duty);
      if (order.weight) request.set_weight(*order.weight);
      grpc::ClientContext context;
      SetTimeout(context, kAnswerLimit);
      v1::OrderRankResponse response;
      WINNOW_RETURN_IF_ERROR(OfRouter(router.stub->OrderRank(&context, request, &response), router.server));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AdminClient::Reloaded>> AdminClient::Reload() const {
  std::vector<Reloaded> all;
  for (const Router& router : routers_) {
    grpc::ClientContext context;
    SetTimeout(context, kAnswerLimit);
    all.push_back({router.server, {}});
    WINNOW_RETURN_IF_ERROR(
        OfRouter(router.stub->Reload(&context, v1::ReloadRequest(), &all.back().response), router.server));
  }
  return all;
}

}  // namespace winnow
