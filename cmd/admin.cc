// winnow admin: what operators see of a running cluster, and order.
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cmd/admin/admin_client.h"
#include "cmd/admin/drain.h"
#include "cmd/admin/order_reach.h"
#include "cmd/admin/rank_table.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/server_options.h"
#include "cmd/terminal/progress_line.h"
#include "cmd/terminal/stop_on_interrupt.h"
#include "common/base/json.h"

namespace winnow {
namespace {

extern const Command kListRanksCommand, kCordonCommand, kUncordonCommand, kDrainCommand, kWeightsCommand,
    kReloadCommand;

// The routers, and who asks them.
struct AdminOptions {
  std::vector<HostPort> servers{{"127.0.0.1", kGrpcPort}};
  ClientSecurity security;

  void Declare(Fields& fields) {
    DeclareServers(fields, &servers,
                   "the gRPC addresses of all routers of the cluster, or of one that finds the others in a registry; "
                   "without a port, 8001.");
    security.Declare(fields);
  }
  absl::StatusOr<AdminClient> Connect() const {
    WINNOW_ASSIGN_OR_RETURN(const Credentials credentials, security.Load());
    WINNOW_ASSIGN_OR_RETURN(AdminClient client, AdminClient::Connect(servers, credentials));
    for (const std::string& why : client.unanswered()) std::fprintf(stderr, "winnow: %s\n", why.c_str());
    return client;
  }
};

struct ListRanksOptions {
  AdminOptions admin;
  bool json = false;

  void Declare(Fields& fields) {
    admin.Declare(fields);
    fields.Bool("json", &json, "Print one JSON object instead of a table.");
  }
};

struct DrainOptions {
  AdminOptions admin;
  std::chrono::microseconds timeout{0};

  void Declare(Fields& fields) {
    admin.Declare(fields);
    fields.Duration("timeout", &timeout, "How long to wait until the rank is empty. 0 = as long as it takes.");
  }
};

int Ended(const Command& command, const absl::Status& status) {
  return status.ok() ? kExitOk : Fail(command, WithServerHint(status));
}

int WrongOperands(const Command& command, const char* expected) {
  return Fail(command, absl::InvalidArgumentError(absl::StrCat("expected ", expected)), kExitUsage);
}

absl::Status List(const ListRanksOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const AdminClient client, options.admin.Connect());
  WINNOW_ASSIGN_OR_RETURN(const std::vector<RouterRanks> routers, client.List());
  std::fputs(options.json ? (RankJson(routers).dump(2) + "\n").c_str() : RankTable(routers).c_str(), stdout);
  return absl::OkStatus();
}

int ListRanksMain(const Arguments& arguments) {
  ListRanksOptions options;
  if (const auto code = ParseCommandLine(kListRanksCommand, arguments, options)) return *code;
  return Ended(kListRanksCommand, List(options));
}

absl::Status SetDuty(const AdminOptions& options, const std::vector<std::string>& ranks, v1::RankDuty duty,
                     const char* outcome) {
  WINNOW_ASSIGN_OR_RETURN(const AdminClient client, options.Connect());
  std::vector<RankOrder> orders;
  for (const std::string& rank : ranks) orders.push_back({.rank = rank, .duty = duty});
  WINNOW_ASSIGN_OR_RETURN(const std::vector<RouterOrdered> ordered, client.Order(orders));
  for (const std::string& rank : ranks) std::printf("%s %s\n", rank.c_str(), outcome);
  std::fputs(OrderReach(ordered).c_str(), stdout);
  return absl::OkStatus();
}

int DutyMain(const Command& command, const Arguments& arguments, v1::RankDuty duty, const char* outcome) {
  AdminOptions options;
  std::vector<std::string> ranks;
  if (const auto code = ParseCommandLine(command, arguments, options, &ranks)) return *code;
  if (ranks.empty()) return WrongOperands(command, "NAME, as `winnow admin list` prints it");
  return Ended(command, SetDuty(options, ranks, duty, outcome));
}

int CordonMain(const Arguments& arguments) {
  return DutyMain(kCordonCommand, arguments, v1::RANK_DUTY_CORDONED, "takes no new work; what it has goes on there");
}

int UncordonMain(const Arguments& arguments) {
  return DutyMain(kUncordonCommand, arguments, v1::RANK_DUTY_SERVE, "takes work");
}

std::string Counted(uint64_t count, const char* one, const char* many) {
  return absl::StrCat(count, " ", count == 1 ? one : many);
}

std::string ProgressText(const std::string& rank, const DrainProgress& progress) {
  return absl::StrCat(rank, ": ", Counted(progress.left, "request", "requests"), " left of ", progress.before, ", ",
                      progress.moved, " moved, ", progress.keeps_sequences ? "they end where they are, " : "",
                      ElapsedText(progress.waited));
}

absl::StatusOr<int> Drain(const DrainOptions& options, const std::string& rank) {
  const StopOnInterrupt interrupt;
  WINNOW_ASSIGN_OR_RETURN(const AdminClient client, options.admin.Connect());
  ProgressLine line;
  WINNOW_ASSIGN_OR_RETURN(const DrainProgress done,
                          DrainRank(client, rank, options.timeout, interrupt.token(),
                                    [&](const DrainProgress& progress) { line.Show(ProgressText(rank, progress)); }));
  line.Erase();
  const std::string reach = OrderReach(done.ordered);
  const std::string after = absl::StrFormat("%.1f s", done.waited.count());
  const std::string stays = absl::StrCat("It stays cordoned: `winnow admin uncordon ", rank, "` gives it work again.");
  if (done.empty()) {
    const uint64_t ended = done.before > done.moved ? done.before - done.moved : 0;
    std::printf("%s is empty after %s: of %s %lu went on on other ranks, %lu ended. %s\n%s", rank.c_str(),
                after.c_str(), Counted(done.before, "request", "requests").c_str(), done.moved, ended, stays.c_str(),
                reach.c_str());
    return kExitOk;
  }
  std::fprintf(
      stderr, "%s still has %s after %s, %s. %s\n%s", rank.c_str(), Counted(done.left, "request", "requests").c_str(),
      after.c_str(),
      done.keeps_sequences ? "whose KV it holds, so that they end there" : "which no other rank can take over now",
      stays.c_str(), reach.c_str());
  return interrupt.interrupted() ? kExitInterrupted : kExitFailure;
}

int DrainMain(const Arguments& arguments) {
  DrainOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kDrainCommand, arguments, options, &words)) return *code;
  if (words.size() != 1) return WrongOperands(kDrainCommand, "NAME, as `winnow admin list` prints it");
  const absl::StatusOr<int> code = Drain(options, words[0]);
  return code.ok() ? *code : Ended(kDrainCommand, code.status());
}

absl::StatusOr<std::vector<RankOrder>> ParseWeights(const std::vector<std::string>& words) {
  std::vector<RankOrder> orders;
  for (const std::string& word : words) {
    const size_t equals = word.rfind('=');
    double weight = 0;
    if (equals == std::string::npos || equals == 0 || !absl::SimpleAtod(word.substr(equals + 1), &weight)) {
      return absl::InvalidArgumentError(absl::StrCat("expected NAME=WEIGHT, got \"", word, "\""));
    }
    orders.push_back({.rank = word.substr(0, equals), .weight = weight});
  }
  return orders;
}

absl::Status Weights(const AdminOptions& options, const std::vector<RankOrder>& orders) {
  WINNOW_ASSIGN_OR_RETURN(const AdminClient client, options.Connect());
  std::string reach;
  if (!orders.empty()) {
    WINNOW_ASSIGN_OR_RETURN(const std::vector<RouterOrdered> ordered, client.Order(orders));
    reach = OrderReach(ordered);
  }
  WINNOW_ASSIGN_OR_RETURN(const std::vector<RouterRanks> routers, client.List());
  std::fputs((WeightTable(routers) + reach).c_str(), stdout);
  return absl::OkStatus();
}

int WeightsMain(const Arguments& arguments) {
  AdminOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kWeightsCommand, arguments, options, &words)) return *code;
  const absl::StatusOr<std::vector<RankOrder>> orders = ParseWeights(words);
  if (!orders.ok()) return Fail(kWeightsCommand, orders.status(), kExitUsage);
  return Ended(kWeightsCommand, Weights(options, *orders));
}

absl::Status Reload(const AdminOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const AdminClient client, options.Connect());
  WINNOW_ASSIGN_OR_RETURN(const std::vector<AdminClient::Reloaded> all, client.Reload());
  std::vector<std::string> errors;
  for (const AdminClient::Reloaded& router : all) {
    if (router.response.sources().empty()) {
      std::printf("router at %s: it has neither API keys nor certificates\n", router.server.c_str());
    }
    for (const v1::ReloadResponse::Source& source : router.response.sources()) {
      if (!source.error().empty()) {
        errors.push_back(absl::StrCat("router at ", router.server, ": ", source.error()));
      } else {
        std::printf("router at %s: %s: %s\n", router.server.c_str(), source.path().c_str(), source.read().c_str());
      }
    }
  }
  if (errors.empty() && client.unanswered().empty()) return absl::OkStatus();
  if (errors.empty()) return absl::UnavailableError("not every router could be told");
  return absl::FailedPreconditionError(
      absl::StrCat(absl::StrJoin(errors, "; "), "; what was read before stays in force"));
}

int ReloadMain(const Arguments& arguments) {
  AdminOptions options;
  if (const auto code = ParseCommandLine(kReloadCommand, arguments, options)) return *code;
  return Ended(kReloadCommand, Reload(options));
}

const Command kListRanksCommand = {
    .name = "admin list",
    .summary = "print the ranks: state, requests, load, weight",
    .synopsis = "[--option=value ...]",
    .about =
        "States: serving; cordoned, which takes no new work; draining, which running requests leave as well;\n"
        "failing, where nothing comes of requests, and which gets them only if no other rank can take them;\n"
        "unreachable; absent, which is not registered, though there are orders for it. `requests` are this\n"
        "router's (each has a table), `running` and `waiting` those of all routers, as of the rank's last heartbeat.\n",
    .environment = Environment::kRead,
    .options = Declared<ListRanksOptions>,
    .run = ListRanksMain};
const Command kCordonCommand = {.name = "admin cordon",
                                .summary = "give ranks no new work; what they have goes on there",
                                .synopsis = "NAME ... [--option=value ...]",
                                .environment = Environment::kRead,
                                .options = Declared<AdminOptions>,
                                .run = CordonMain};
const Command kUncordonCommand = {.name = "admin uncordon",
                                  .summary = "give ranks work again",
                                  .synopsis = "NAME ... [--option=value ...]",
                                  .environment = Environment::kRead,
                                  .options = Declared<AdminOptions>,
                                  .run = UncordonMain};
const Command kDrainCommand = {
    .name = "admin drain",
    .summary = "empty a rank, so that it can be stopped without a request noticing",
    .synopsis = "NAME [--timeout=DURATION] [--option=value ...]",
    .about =
        "Requests on an inference rank go on on others that reach their KV and have a place free, once their\n"
        "prompt is computed; others end there. Sequences of a cache rank end there. Exits with 0 once the rank\n"
        "is empty, with 1 when it is not within --timeout, with 130 after Ctrl-C; it stays cordoned each time.\n",
    .environment = Environment::kRead,
    .options = Declared<DrainOptions>,
    .run = DrainMain};
const Command kWeightsCommand = {
    .name = "admin weights",
    .summary = "print or set the weights of ranks: one of weight 2 gets twice the work of others",
    .synopsis = "[NAME=WEIGHT ...] [--option=value ...]",
    .about =
        "Weights are from 0.01 to 100 and begin as 1. Those of tenants are in the file of API keys: see\n"
        "`winnow keys` and `winnow admin reload`.\n",
    .environment = Environment::kRead,
    .options = Declared<AdminOptions>,
    .run = WeightsMain};
const Command kReloadCommand = {
    .name = "admin reload",
    .summary = "read API keys and certificates again and say what was read, or what is wrong",
    .synopsis = "[--option=value ...]",
    .environment = Environment::kRead,
    .options = Declared<AdminOptions>,
    .run = ReloadMain};
constexpr const Command* kAdminSubcommands[] = {&kListRanksCommand, &kCordonCommand,  &kUncordonCommand,
                                                &kDrainCommand,     &kWeightsCommand, &kReloadCommand};

}  // namespace

const Command kAdminCommand = {
    .name = "admin",
    .summary = "list, cordon and drain the ranks of a running cluster, weigh them, reload keys",
    .synopsis = "COMMAND",
    .about =
        "Where routers have a registry, it keeps orders for all of them, and one router is enough to name. Otherwise\n"
        "orders hold for the routers that take them, until these end: name all routers with --server=A,B. With\n"
        "TLS a certificate of spiffe://winnow/admin is needed.\n",
    .subcommands = kAdminSubcommands};

}  // namespace winnow
