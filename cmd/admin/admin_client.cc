#include "cmd/admin/admin_client.h"

#include <chrono>
#include <set>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"

namespace winnow {
namespace {

constexpr std::chrono::seconds kAnswerLimit{10};
// Of a router that was found in the registry, perhaps at an address that is not reached from here.
constexpr std::chrono::seconds kFoundAnswerLimit{2};

using Stub = v1::ClusterAdminService::Stub;

absl::Status OfRouter(const grpc::Status& status, const std::string& server) {
  return Annotate(FromGrpc(status), "router at " + server);
}

absl::StatusOr<v1::ListRanksResponse> ListOf(Stub& stub, const std::string& server, std::chrono::seconds limit) {
  grpc::ClientContext context;
  SetTimeout(context, limit);
  v1::ListRanksResponse list;
  WINNOW_RETURN_IF_ERROR(OfRouter(stub.ListRanks(&context, v1::ListRanksRequest(), &list), server));
  return list;
}

absl::StatusOr<v1::OrderRankResponse> OrderAt(Stub& stub, const std::string& server, const RankOrder& order,
                                              bool only_check) {
  v1::OrderRankRequest request;
  request.set_rank(order.rank);
  if (order.duty) request.set_duty(*order.duty);
  if (order.weight) request.set_weight(*order.weight);
  request.set_only_check(only_check);
  grpc::ClientContext context;
  SetTimeout(context, kAnswerLimit);
  v1::OrderRankResponse response;
  WINNOW_RETURN_IF_ERROR(OfRouter(stub.OrderRank(&context, request, &response), server));
  return response;
}

// Which process it is, at whatever address.
std::pair<std::string, uint64_t> ProcessOf(const v1::ListRanksResponse& list) {
  return {list.router().rank(), list.router().incarnation()};
}

}  // namespace

AdminClient::Router AdminClient::Reach(const std::string& server, const Credentials& credentials, bool is_named) {
  return {server, v1::ClusterAdminService::NewStub(NewChannel(server, credentials)), is_named};
}

absl::StatusOr<AdminClient> AdminClient::Connect(const std::vector<HostPort>& servers, const Credentials& credentials) {
  AdminClient client;
  std::set<std::string> addresses, found;
  std::set<std::pair<std::string, uint64_t>> processes;
  for (const HostPort& server : servers) {
    Router router = Reach(server.ToString(), credentials, /*is_named=*/true);
    WINNOW_ASSIGN_OR_RETURN(const v1::ListRanksResponse list, ListOf(*router.stub, router.server, kAnswerLimit));
    addresses.insert(router.server);
    found.insert(list.routers().begin(), list.routers().end());
    if (processes.insert(ProcessOf(list)).second) client.routers_.push_back(std::move(router));
  }
  for (const std::string& server : found) {
    if (addresses.contains(server)) continue;
    Router router = Reach(server, credentials, /*is_named=*/false);
    const absl::StatusOr<v1::ListRanksResponse> list = ListOf(*router.stub, server, kFoundAnswerLimit);
    if (!list.ok()) {
      client.unanswered_.push_back(absl::StrCat(list.status().message(), " (it is in the registry)"));
    } else if (processes.insert(ProcessOf(*list)).second) {
      client.routers_.push_back(std::move(router));
    }
  }
  return client;
}

absl::StatusOr<std::vector<RouterRanks>> AdminClient::List() const {
  std::vector<RouterRanks> lists;
  for (const Router& router : routers_) {
    absl::StatusOr<v1::ListRanksResponse> list =
        ListOf(*router.stub, router.server, router.is_named ? kAnswerLimit : kFoundAnswerLimit);
    if (list.ok()) {
      lists.push_back({router.server, *std::move(list)});
    } else if (router.is_named) {
      return list.status();
    }
  }
  return lists;
}

absl::StatusOr<RouterOrdered> AdminClient::OrderAll(const Router& router, const std::vector<RankOrder>& orders,
                                                    bool only_check) {
  RouterOrdered ordered{router.server, {}};
  for (const RankOrder& order : orders) {
    WINNOW_ASSIGN_OR_RETURN(v1::OrderRankResponse response, OrderAt(*router.stub, router.server, order, only_check));
    if (ordered.response.registry_error().empty()) ordered.response = std::move(response);
  }
  return ordered;
}

absl::StatusOr<std::vector<RouterOrdered>> AdminClient::Order(const std::vector<RankOrder>& orders) const {
  for (const Router& router : routers_) {
    if (router.is_named) WINNOW_RETURN_IF_ERROR(OrderAll(router, orders, /*only_check=*/true).status());
  }
  std::vector<RouterOrdered> all;
  bool reaches_all = true;
  for (const Router& router : routers_) {  // those that are named come first
    if (!router.is_named && reaches_all) break;
    WINNOW_ASSIGN_OR_RETURN(all.emplace_back(), OrderAll(router, orders, /*only_check=*/false));
    if (router.is_named) reaches_all = reaches_all && all.back().response.in_registry();
  }
  return all;
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
