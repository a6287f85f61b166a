#include "cmd/role/link_reports.h"

#include <array>
#include <atomic>
#include <chrono>
#include <string>

#include "common/base/logging.h"

namespace winnow {
namespace {

constexpr std::array kLevels = {Protection::kPlain, Protection::kHeaders, Protection::kAuthenticated,
                                Protection::kEncrypted};

// A label's value.
const char* LevelLabel(Protection level) {
  switch (level) {
    case Protection::kPlain:
      return "plain";
    case Protection::kHeaders:
      return "headers";
    case Protection::kAuthenticated:
      return "authenticated";
    case Protection::kEncrypted:
      return "encrypted";
  }
  return "unknown";
}

}  // namespace

struct LinkReports::Counts {
  std::array<std::atomic<uint64_t>, kLevels.size()> links{};
  std::atomic<uint64_t> stray_frames{0};
  std::atomic<uint64_t> bad_frames{0};
  // The transport's thread:
  std::chrono::steady_clock::time_point quiet_until{};
  uint64_t not_logged = 0;

  // Whoever sends many frames shall not fill the log with them.
  void LogRefused(bool stray, const absl::Status& why) {
    const auto now = std::chrono::steady_clock::now();
    if (now < quiet_until) {
      ++not_logged;
      return;
    }
    constexpr std::chrono::seconds kQuiet{10};
    quiet_until = now + kQuiet;
    const std::string more =
        not_logged > 0 ? absl::StrCat(" (and ", not_logged, " frames before, since the last such line)") : "";
    not_logged = 0;
    spdlog::warn("data plane: {}: {}{}", stray ? "refused a stranger's frame" : "closed a link for a bad frame",
                 std::string(why.message()), more);
  }
};

LinkReports::LinkReports() : counts_(std::make_shared<Counts>()) {}

void LinkReports::Attach(TransportOptions& options) const {
  options.on_protection = [counts = counts_](Protection level) {
    counts->links[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
    spdlog::info("frames of a link are {}{}", ProtectionName(level),
                 level == Protection::kPlain ? "" : " (AES-256-GCM)");
  };
  options.on_refused_frame = [counts = counts_](bool stray, const absl::Status& why) {
    (stray ? counts->stray_frames : counts->bad_frames).fetch_add(1, std::memory_order_relaxed);
    counts->LogRefused(stray, why);
  };
}

void LinkReports::Write(FamilyWriter& writer) const {
  for (const Protection level : kLevels) {
    writer.Counter("winnow_data_plane_links_total", "Links of the data plane that were opened, by their protection.",
                   static_cast<double>(counts_->links[static_cast<size_t>(level)].load(std::memory_order_relaxed)),
                   {{"protection", LevelLabel(level)}});
  }
  const char* refused =
      "Frames of the data plane that were refused: stray ones, which were not of a link and were dropped, and bad "
      "ones, "
      "each of which has closed its link.";
  writer.Counter("winnow_data_plane_refused_frames_total", refused,
                 static_cast<double>(counts_->stray_frames.load(std::memory_order_relaxed)), {{"frame", "stray"}});
  writer.Counter("winnow_data_plane_refused_frames_total", refused,
                 static_cast<double>(counts_->bad_frames.load(std::memory_order_relaxed)), {{"frame", "bad"}});
}

}  // namespace winnow
