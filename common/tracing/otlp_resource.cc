#include "common/tracing/otlp_resource.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace winnow {
namespace {

// Facts about this process, which nobody outside knows better.
constexpr std::array<std::string_view, 4> kFacts = {"service.instance.id", "service.version", "host.name",
                                                    "process.pid"};

std::optional<std::string> PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    uint32_t byte = 0;
    if (i + 2 >= text.size() || !absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) return std::nullopt;
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::optional<Pairs> Parse(std::string_view text) {
  Pairs pairs;
  for (absl::string_view each :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(each, absl::MaxSplits('=', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(parts.first);
    const std::optional<std::string> value = PercentDecoded(absl::StripAsciiWhitespace(parts.second));
    if (key.empty() || each.find('=') == absl::string_view::npos || !value) return std::nullopt;
    pairs.emplace_back(std::string(key), *value);
  }
  return pairs;
}

void Set(SpanAttributes* attributes, const std::string& key, const std::string& value) {
  const auto it =
      std::find_if(attributes->begin(), attributes->end(), [&](const auto& each) { return each.first == key; });
  if (it == attributes->end()) {
    attributes->emplace_back(key, value);
  } else if (std::find(kFacts.begin(), kFacts.end(), key) == kFacts.end()) {
    it->second = value;
  }
}

}  // namespace

SpanAttributes WithEnvironment(SpanAttributes own, std::string_view service_name, std::string_view attributes) {
  for (const auto& [key, value] : Parse(attributes).value_or(Pairs())) Set(&own, key, value);
  if (!service_name.empty()) Set(&own, "service.name", std::string(service_name));
  return own;
}

}  // namespace winnow
