#include "tools/bench/quality/served_answers.h"

#include <cmath>

#include "tests/e2e/json.h"
#include "tools/load/http_client.h"

namespace winnow {
namespace {

using e2e::Json;

// Room for an answer that goes wrong; a right one ends by itself.
constexpr size_t kSpareTokens = 8;

absl::Status Refusal(const TaskPrompt& prompt, const HttpReply& reply) {
  const std::string what = absl::StrCat("prompt ", prompt.id, ": ", reply.body);
  if (reply.status == 0) return absl::UnavailableError(what);
  return absl::FailedPreconditionError(absl::StrCat(what, " (HTTP ", reply.status, ")"));
}

// A number of usage.winnow; 0 when it is null or missing.
double Stat(const Json& usage, const char* name) {
  const auto winnow = usage.find("winnow");
  if (winnow == usage.end() || !winnow->is_object()) return 0;
  const auto stat = winnow->find(name);
  return stat == winnow->end() || !stat->is_number() ? 0 : stat->get<double>();
}

}  // namespace

absl::StatusOr<AnswerRecord> ServedAnswers::Ask(const TaskPrompt& prompt, const SpecChoice& choice) const {
  const HttpClient client(address_, std::chrono::minutes(10));
  const HttpReply tokenized = client.Post("/tokenize", {{"prompt", prompt.answer}, {"add_special_tokens", false}});
  if (tokenized.status != 200) return Refusal(prompt, tokenized);
  const std::vector<uint32_t> want = tokenized.json().at("tokens").get<std::vector<uint32_t>>();

  Json selection = {{"selection", choice.name}};
  if (choice.budget() > 0) selection["budget"] = choice.budget();
  const HttpReply reply =
      client.Post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", prompt.prompt}}}},
                                           {"temperature", 0},
                                           {"max_tokens", want.size() + kSpareTokens},
                                           {"return_token_ids", true},
                                           {"winnow", selection}});
  if (reply.status != 200) return Refusal(prompt, reply);
  const Json answer = reply.json();
  const Json& got = answer.at("choices").at(0);
  const Json& usage = answer.at("usage");
  const bool stopped = got.at("finish_reason") == "stop";
  const std::vector<uint32_t> ids = got.at("token_ids").get<std::vector<uint32_t>>();

  AnswerRecord record;
  record.mode = "greedy";
  record.spec = choice.name;
  record.budget = choice.budget();
  record.prompt_tokens = usage.at("prompt_tokens").get<uint32_t>();
  record.answer_tokens = static_cast<uint32_t>(want.size()) + 1;
  while (record.right_tokens < std::min(want.size(), ids.size()) &&
         want[record.right_tokens] == ids[record.right_tokens]) {
    ++record.right_tokens;
  }
  record.exact = stopped && got.at("message").at("content") == prompt.answer;
  if (record.exact) record.right_tokens = record.answer_tokens;
  const uint32_t completion = usage.at("completion_tokens").get<uint32_t>();
  record.decode_steps = completion > 0 ? completion - 1 : 0;
  record.mass_mean = Stat(usage, "captured_mass_mean");
  record.mass_count = record.mass_mean > 0 ? record.decode_steps : 0;
  record.streamed_rows = static_cast<uint64_t>(Stat(usage, "streamed_rows"));
  record.streamed_bytes = static_cast<uint64_t>(Stat(usage, "streamed_bytes"));
  // The response has the ratio; lookups follow from it and from the misses, which are the streamed rows.
  const double hit_ratio = Stat(usage, "hit_ratio");
  if (record.streamed_rows > 0 && hit_ratio < 1) {
    record.selection_lookups = std::llround(static_cast<double>(record.streamed_rows) / (1 - hit_ratio));
    record.selection_hits = record.selection_lookups - record.streamed_rows;
  }
  return record;
}

}  // namespace winnow
