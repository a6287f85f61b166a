#include "common/tracing/trace_context.h"

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace winnow {
namespace {

constexpr size_t kMaxTracestateMembers = 32;
constexpr size_t kMaxTracestateBytes = 8192;  // the recommendation asks for 512 at least
constexpr uint8_t kSampledFlag = 1;

// 0 is no id.
uint64_t RandomId() {
  thread_local std::mt19937_64 random([] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }());
  uint64_t id = 0;
  while (id == 0) id = random();
  return id;
}

// Lower-case digits alone: the recommendation allows no others.
std::optional<uint64_t> ParseHex(std::string_view text) {
  uint64_t value = 0;
  for (const char c : text) {
    if (c >= '0' && c <= '9') {
      value = value << 4 | static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value << 4 | static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

bool IsLowerAlpha(char c) {
  return c >= 'a' && c <= 'z';
}

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// "tenant@system" or a simple name. A tenant may begin with a digit, a system and a simple name may not.
bool IsTracestateKey(std::string_view key) {
  const auto is_name = [](std::string_view name, size_t longest, bool may_begin_with_digit) {
    if (name.empty() || name.size() > longest) return false;
    if (!IsLowerAlpha(name[0]) && !(may_begin_with_digit && IsDigit(name[0]))) return false;
    for (const char c : name) {
      if (!IsLowerAlpha(c) && !IsDigit(c) && c != '_' && c != '-' && c != '*' && c != '/') return false;
    }
    return true;
  };
  const size_t at = key.find('@');
  if (at == std::string_view::npos) return is_name(key, 256, false);
  return is_name(key.substr(0, at), 241, true) && is_name(key.substr(at + 1), 14, false);
}

bool IsTracestateValue(std::string_view value) {
  if (value.empty() || value.size() > 256 || value.back() == ' ') return false;
  for (const char c : value) {
    if (c < 0x20 || c > 0x7e || c == ',' || c == '=') return false;
  }
  return true;
}

std::string_view StripBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string HexText(uint64_t value) {
  return absl::StrCat(absl::Hex(value, absl::kZeroPad16));
}

}  // namespace

TraceContext TraceContext::Child() const {
  TraceContext child = *this;
  child.span_id = RandomId();
  return child;
}

TraceContext NewTrace(bool sampled) {
  return {.trace_id_high = RandomId(), .trace_id_low = RandomId(), .span_id = RandomId(), .sampled = sampled};
}

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  // "vv-" 32 digits "-" 16 digits "-ff", and behind it, in versions to come, "-" and what they add.
  constexpr size_t kLength = 55;
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  const std::optional<uint64_t> version = ParseHex(text.substr(0, 2));
  if (!version || *version == 0xff) return std::nullopt;
  if (text.size() > kLength && (*version == 0 || text[kLength] != '-')) return std::nullopt;
  const std::optional<uint64_t> high = ParseHex(text.substr(3, 16)), low = ParseHex(text.substr(19, 16));
  const std::optional<uint64_t> span = ParseHex(text.substr(36, 16)), flags = ParseHex(text.substr(53, 2));
  if (!high || !low || !span || !flags) return std::nullopt;
  if ((*high | *low) == 0 || *span == 0) return std::nullopt;
  return TraceContext{
      .trace_id_high = *high, .trace_id_low = *low, .span_id = *span, .sampled = (*flags & kSampledFlag) != 0};
}

bool IsTracestate(std::string_view text) {
  if (text.size() > kMaxTracestateBytes) return false;
  std::set<std::string_view> keys;
  size_t members = 0;
  const std::vector<absl::string_view> parts = absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  for (const absl::string_view part : parts) {
    const std::string_view member = StripBlanks({part.data(), part.size()});
    if (member.empty()) continue;
    if (++members > kMaxTracestateMembers) return false;
    const size_t equals = member.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = member.substr(0, equals);
    if (!IsTracestateKey(key) || !IsTracestateValue(member.substr(equals + 1)) || !keys.insert(key).second)
      return false;
  }
  return true;
}

std::optional<TraceContext> ParseTraceContext(std::string_view traceparent, std::string_view tracestate) {
  std::optional<TraceContext> context = ParseTraceparent(StripBlanks(traceparent));
  if (context && IsTracestate(tracestate)) context->tracestate = std::string(StripBlanks(tracestate));
  return context;
}

std::string Traceparent(const TraceContext& context) {
  return absl::StrCat("00-", TraceIdText(context), "-", SpanIdText(context.span_id), "-",
                      context.sampled ? "01" : "00");
}

std::string TraceIdText(const TraceContext& context) {
  return HexText(context.trace_id_high) + HexText(context.trace_id_low);
}

std::string SpanIdText(uint64_t span_id) {
  return HexText(span_id);
}

bool IsInSample(const TraceContext& context, double ratio) {
  if (ratio >= 1) return true;
  // The lower 56 bits are those that the recommendation asks to be random.
  constexpr uint64_t kRandomBits = (uint64_t{1} << 56) - 1;
  return static_cast<double>(context.trace_id_low & kRandomBits) < std::ldexp(ratio, 56);
}

}  // namespace winnow
