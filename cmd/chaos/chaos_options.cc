#include "cmd/chaos/chaos_options.h"

#include "absl/strings/str_split.h"
#include "common/config/parse_value.h"

namespace winnow::chaos {
namespace {

absl::StatusOr<LengthMix> Lengths(const char* option, const std::string& text) {
  absl::StatusOr<LengthMix> mix = LengthMix::Parse(text);
  if (!mix.ok()) return Annotate(mix.status(), absl::StrCat("--", option));
  return mix;
}

absl::StatusOr<int64_t> BitsPerSecond(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}};
  for (const auto& [unit, bits] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const absl::StatusOr<double> number = ParseNumber(std::string_view(text).substr(0, text.size() - unit.size()));
    if (number.ok() && *number * bits >= 1000) return static_cast<int64_t>(*number * bits);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--link-rate: expected a rate from 1kbit on, such as 500kbit, 100Mbit or 1Gbit; got \"", text, "\""));
}

std::string FaultHelp() {
  std::string help = "Faults by their names, separated by commas; trials take them in turn.";
  for (const FaultKind& kind : AllFaults())
    absl::StrAppend(&help, " ", AbslSv(kind.name), ": ", AbslSv(kind.help), ".");
  absl::StrAppend(
      &help, " Links (cut, isolate, throttle) and the disk are struck as root, of a cluster that is started here.");
  return help;
}

}  // namespace

void ChaosOptions::Declare(Fields& fields) {
  fields.Text("server", &server,
              "HTTP addresses of the routers of a cluster that runs on this host, separated by commas, to torture it "
              "in place of one that is started for it. Needs --metrics and --yes.");
  fields.Text("metrics", &metrics, "Metrics addresses of the same routers: there the others are found.");
  fields.Bool("yes", &yes, "Do it to the cluster of --server. Without it, only what would be done is said.");
  fields.File("cluster-log", &cluster_log, "File for what the started cluster logs.");
  fields.Enum(
      "mode", &mode,
      {{"faults", Mode::kFaults},
       {"heal", Mode::kHeal},
       {"cancel", Mode::kCancel},
       {"overload", Mode::kOverload},
       {"soak", Mode::kSoak}},
      "faults: trials with faults. heal: the same under load that does not end, with deadlines, and throughput before, "
      "in and behind each fault. cancel: clients that go away. overload: twice the requests that the cluster "
      "can answer. soak: load for a long time, in which nothing may grow.");
  fields.Text("faults", &faults, FaultHelp());
  fields.Integer("trials", &trials, "Trials with faults; one without comes first.", 1, 100'000);
  fields.Integer("at-once", &at_once, "Faults in each trial, at times of their own.", 1, 16);
  fields.Text("stop-for", &stop_for, "For how long processes are stopped: durations from which each trial draws.");
  fields.Duration("fault-time", &lasts, "How long the other faults last that have an end.");
  fields.Text("link-rate", &link_rate, "Of throttle: bits a second, as 500kbit, 100Mbit or 1Gbit.");
  fields.Duration("window", &window,
                  "Of heal: how long throughput is measured before a fault, and from 5 s behind it.");
  fields.Duration("deadline", &deadline, "Of heal: the deadline of each request.");
  fields.Duration("duration", &duration, "Of overload and soak.");
  fields.Integer("cancels", &cancels, "Streams that cancel begins.", 1u, 100'000'000u);
  fields.Integer("streams", &streams, "Streams at once.", 1u, 4096u);
  fields.Integer("requests", &requests, "Different requests; 0 = as many as streams. Each is asked alone at first.", 0u,
                 4096u);
  fields.Text("prompt-tokens", &prompt_tokens,
              "Prompt lengths: TOKENS, LOW-HIGH, or a list of these with weights: 1k:3,8k-16k:1.");
  fields.Text("answer-tokens", &answer_tokens, "Answer lengths, likewise.");
  fields.Text("mix", &mix,
              "Kinds of requests, which take turns: of greedy, seeded, samples (n > 1), structured (JSON).");
  fields.Integer("first-token-id", &first_token_id, "Prompts are made of ids from here on ...", 0u, 10'000'000u);
  fields.Integer("token-ids", &token_ids, "... so many of them; all must be in the model's vocabulary.", 1u,
                 10'000'000u);
  fields.Duration("spread", &spread, "Time within which the streams of a trial begin.");
  fields.Duration("patience", &patience, "How long a client waits for its answer before it is lost.");
  fields.Duration("settle", &settle,
                  "How long sequences, blocks and places may take to be free once faults and streams are over.");
  fields.Bytes("rss-slack", &rss_slack_bytes, "Memory that a process may have more than before, without leaking.");
  fields.Integer("descriptor-slack", &descriptor_slack, "Descriptors, likewise.", int64_t{0}, int64_t{1} << 30);
  fields.Integer("thread-slack", &thread_slack, "Threads, likewise.", int64_t{0}, int64_t{1} << 30);
  fields.Integer("seed", &seed, "Of everything that is drawn: requests, faults, targets, times.", uint64_t{0},
                 uint64_t{1} << 62);
  fields.Enum("control", &control,
              {{"none", Control::kNone},
               {"wrong-token", Control::kWrongToken},
               {"lost-request", Control::kLostRequest},
               {"no-fault", Control::kNoFault}},
              "Spoils the run, which must then fail: a token that was received is altered, an answer is dropped, or no "
              "fault is done where one is claimed.");
  fields.Text("api-key", &api_key, "For a cluster with keys.");
  fields.File("json", &json, "File for all figures.");
}

absl::StatusOr<RequestOptions> ChaosOptions::Requests() const {
  RequestOptions options{.count = requests > 0 && mode != Mode::kFaults ? requests : streams,
                         .prompt = {},
                         .answer = {},
                         .mix = mix,
                         .first_token_id = first_token_id,
                         .token_ids = token_ids,
                         .seed = seed};
  WINNOW_ASSIGN_OR_RETURN(options.prompt, Lengths("prompt-tokens", prompt_tokens));
  WINNOW_ASSIGN_OR_RETURN(options.answer, Lengths("answer-tokens", answer_tokens));
  return options;
}

absl::StatusOr<FaultPlan> ChaosOptions::Faults() const {
  using std::chrono::milliseconds;
  FaultPlan plan{.lasts = std::chrono::duration_cast<milliseconds>(lasts), .trials = trials, .at_once = at_once};
  WINNOW_ASSIGN_OR_RETURN(plan.kinds, ParseFaults(faults));
  WINNOW_ASSIGN_OR_RETURN(plan.bits_per_s, BitsPerSecond(link_rate));
  for (const std::string& text : std::vector<std::string>(absl::StrSplit(stop_for, ','))) {
    const absl::StatusOr<std::chrono::microseconds> time = ParseDuration(text);
    if (!time.ok()) return Annotate(time.status(), "--stop-for");
    plan.stop_for.push_back(std::chrono::duration_cast<milliseconds>(*time));
  }
  for (const FaultKind& kind : plan.kinds) {
    if (mode != Mode::kHeal || kind.lasts()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--mode=heal: ", AbslSv(kind.name), " has no end behind which something could heal"));
  }
  return plan;
}

}  // namespace winnow::chaos
