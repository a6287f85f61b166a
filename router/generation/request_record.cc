#include "router/generation/request_record.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace winnow {
namespace {

std::string Word(const std::string& text) {
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '='; };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  return absl::StrCat("\"", absl::CHexEscape(text), "\"");
}

}  // namespace

std::string LogLine(const RequestRecord& r) {
  std::string line =
      absl::StrCat("request id=", Word(r.request_id), " prompt_tokens=", r.prompt_tokens,
                   " cached_tokens=", r.cached_prompt_tokens, " completion_tokens=", r.completion_tokens);
  if (r.outputs != 1) absl::StrAppend(&line, " outputs=", r.outputs);
  if (r.first_token) absl::StrAppendFormat(&line, " first_token_s=%.4f", r.first_token->count());
  absl::StrAppendFormat(&line, " duration_s=%.4f ended=%s", r.duration.count(), r.ended);
  if (!r.ranks.empty()) absl::StrAppend(&line, " ranks=", absl::StrJoin(r.ranks, ","));
  if (!r.trace_id.empty()) absl::StrAppend(&line, " trace_id=", r.trace_id);
  return line;
}

}  // namespace winnow
