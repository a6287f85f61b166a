#include "tools/plan/device_rates.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace winnow {
namespace {

constexpr double kGib = 1 << 30;

// Memory bandwidth and links as datasheets have them; the rate of products is four fifths of the datasheet's, which is
// what they reach on an H200. Longer names first: one may begin like another.
constexpr GpuSheet kSheets[] = {
    {"H200", "H200, 141 GB", {4.8e12, 790e12, 450e9, 139 * kGib}},
    {"H100 NVL", "H100 NVL, 94 GB", {3.9e12, 670e12, 300e9, 92 * kGib}},
    {"H100 PCIe", "H100 PCIe, 80 GB", {2.0e12, 600e12, 300e9, 78 * kGib}},
    {"H100", "H100 SXM, 80 GB", {3.35e12, 790e12, 450e9, 78 * kGib}},
    {"A100-SXM4-40GB", "A100, 40 GB", {1.555e12, 250e12, 300e9, 39 * kGib}},
    {"A100", "A100, 80 GB", {2.039e12, 250e12, 300e9, 78 * kGib}},
    {"L40S", "L40S, 48 GB", {0.864e12, 290e12, 32e9, 44 * kGib}},
};

}  // namespace

absl::StatusOr<GpuSheet> FindGpuSheet(std::string_view name) {
  const std::string wanted = absl::AsciiStrToLower(absl::string_view(name.data(), name.size()));
  for (const GpuSheet& sheet : kSheets) {
    const std::string known = absl::AsciiStrToLower(absl::string_view(sheet.name.data(), sheet.name.size()));
    if (wanted.find(known) != std::string::npos) return sheet;
  }
  return absl::NotFoundError(absl::StrCat("there is no datasheet of ", std::string(name), ": known are ",
                                          GpuSheetNames(), "; others by their rates"));
}

std::string GpuSheetNames() {
  std::string names;
  for (const GpuSheet& sheet : kSheets) absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(sheet.name));
  return names;
}

}  // namespace winnow
