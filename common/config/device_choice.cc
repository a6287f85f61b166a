#include "common/config/device_choice.h"

#include <algorithm>
#include <charconv>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr int kMaxOrdinal = 63;

bool ParseOrdinal(std::string_view text, int& ordinal) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ordinal);
  return error == std::errc() && end == text.data() + text.size() && ordinal >= 0 && ordinal <= kMaxOrdinal;
}

}  // namespace

absl::StatusOr<DeviceChoice> ParseDeviceChoice(std::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("\"", AbslSv(text), "\" is not auto, cpu or cuda (auto:N and cuda:N name GPU N, 0 to ", kMaxOrdinal,
                   ", and cuda:N,M,... several)"));
  const std::string_view first = text.substr(0, text.find(','));
  const size_t colon = first.find(':');
  const std::string_view kind = first.substr(0, colon);
  DeviceChoice choice;
  if (kind == "cpu") {
    choice.kind = DeviceChoice::Kind::kCpu;
  } else if (kind == "cuda") {
    choice.kind = DeviceChoice::Kind::kGpu;
  } else if (kind != "auto") {
    return bad;
  }
  if (colon == std::string_view::npos) return first.size() == text.size() ? absl::StatusOr<DeviceChoice>(choice) : bad;
  if (!ParseOrdinal(first.substr(colon + 1), choice.ordinal) || kind == "cpu") return bad;
  const std::string named_kind = std::string(kind) + ":";
  for (size_t at = first.size(); at < text.size();) {
    std::string_view next = text.substr(at + 1);
    next = next.substr(0, next.find(','));
    at += 1 + next.size();
    if (next.starts_with(named_kind)) next.remove_prefix(named_kind.size());
    int ordinal = 0;
    if (!ParseOrdinal(next, ordinal)) return bad;
    if (ordinal == choice.ordinal || std::find(choice.more.begin(), choice.more.end(), ordinal) != choice.more.end()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", AbslSv(text), "\" names GPU ", ordinal, " twice"));
    }
    choice.more.push_back(ordinal);
  }
  return choice;
}

std::string ToString(const DeviceChoice& choice) {
  const char* kind = choice.kind == DeviceChoice::Kind::kCpu   ? "cpu"
                     : choice.kind == DeviceChoice::Kind::kGpu ? "cuda"
                                                               : "auto";
  if (choice.ordinal == 0 && choice.more.empty()) return kind;
  std::string text = absl::StrCat(kind, ":", choice.ordinal);
  for (const int ordinal : choice.more) absl::StrAppend(&text, ",", ordinal);
  return text;
}

absl::StatusOr<std::vector<int>> GpusOfRank(const DeviceChoice& choice, int tensor_parallel, int rank, int num_ranks) {
  WINNOW_CHECK(rank >= 0 && rank < num_ranks);
  const int named = choice.num_named();
  const int each = tensor_parallel > 0 ? tensor_parallel : std::max(1, named / num_ranks);
  if (each != 1 && each != 2 && each != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model is shared by 1, 2 or 4 GPUs (--tensor-parallel), not by ", each));
  }
  if (named > 1 && named != each * num_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--device=", ToString(choice), " names ", named, " GPUs, and ",
                                                   num_ranks, num_ranks > 1 ? " ranks" : " rank",
                                                   " with --tensor-parallel=", each, " take ", each * num_ranks));
  }
  std::vector<int> all = {choice.ordinal};
  all.insert(all.end(), choice.more.begin(), choice.more.end());
  while (static_cast<int>(all.size()) < each * num_ranks) all.push_back(all.back() + 1);
  return std::vector<int>(all.begin() + rank * each, all.begin() + (rank + 1) * each);
}

}  // namespace winnow
