#include "tools/load/trace_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::json;

absl::StatusOr<uint64_t> Count(const Json& line, const char* field, uint64_t low, uint64_t high) {
  const auto value = line.find(field);
  if (value == line.end()) return absl::InvalidArgumentError(absl::StrCat("no \"", field, "\""));
  if (!value->is_number()) return absl::InvalidArgumentError(absl::StrCat("\"", field, "\" is no number"));
  const double number = value->get<double>();
  if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high))) {
    return absl::InvalidArgumentError(absl::StrCat("\"", field, "\" is ", number, ", not in [", low, ", ", high, "]"));
  }
  if (number != std::floor(number)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", field, "\" is ", number, ", no whole number"));
  }
  return static_cast<uint64_t>(number);
}

absl::StatusOr<PlannedRequest> ParseLine(const std::string& text, uint64_t line_number, double speed) {
  const Json line = ParseJson(text);
  if (!line.is_object()) return absl::InvalidArgumentError("no JSON object");
  PlannedRequest request;
  WINNOW_ASSIGN_OR_RETURN(const uint64_t timestamp, Count(line, "timestamp", 0, uint64_t{1} << 52));
  WINNOW_ASSIGN_OR_RETURN(uint64_t left, Count(line, "input_length", 1, 1 << 28));
  WINNOW_ASSIGN_OR_RETURN(const uint64_t output, Count(line, "output_length", 1, 1 << 28));
  request.at_s = static_cast<double>(timestamp) / 1000 / speed;
  request.output_tokens = static_cast<uint32_t>(output);
  const Json ids = line.value("hash_ids", Json::array());
  if (!ids.is_array()) return absl::InvalidArgumentError("\"hash_ids\" is no list");
  for (const Json& id : ids) {
    if (!id.is_number_unsigned()) {
      return absl::InvalidArgumentError(absl::StrCat("\"hash_ids\" holds ", id.dump(), ", no integer from 0 up"));
    }
    const auto tokens = static_cast<uint32_t>(std::min<uint64_t>(left, kTraceBlockTokens));
    if (tokens == 0) return absl::InvalidArgumentError("\"hash_ids\" has more blocks than \"input_length\" tokens");
    request.prompt.push_back({id.get<uint64_t>() * 0x9E3779B97F4A7C15, tokens});
    left -= tokens;
  }
  // What no id covers is the request's own.
  if (left > 0) request.prompt.push_back({~line_number * 0xD6E8FEB86659FD93, static_cast<uint32_t>(left)});
  return request;
}

}  // namespace

absl::StatusOr<std::vector<PlannedRequest>> ReadTrace(const std::string& path, double speed, uint32_t max_requests) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::vector<PlannedRequest> requests;
  std::string text;
  for (uint64_t number = 1; requests.size() < max_requests && std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<PlannedRequest> request = ParseLine(text, number, speed);
    if (!request.ok()) return Annotate(request.status(), absl::StrCat(path, ":", number));
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " holds no request"));
  std::stable_sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  return requests;
}

}  // namespace winnow
