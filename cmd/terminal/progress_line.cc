#include "cmd/terminal/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace winnow {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr int kQuietTicks = 3;
constexpr int kBarCells = 24;
constexpr char kEraseLine[] = "\r\033[K";

void WriteAll(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(STDERR_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nobody looks any more
    bytes.remove_prefix(n);
  }
}

size_t TerminalColumns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool IsTerminal() {
  const char* name = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && (name == nullptr || std::string_view(name) != "dumb");
}

}  // namespace

ProgressLine::ProgressLine(bool quiet) : shows_(!quiet && IsTerminal()), lines_(STDERR_FILENO) {}

void ProgressLine::Draw() {
  if (!shows_ || text_.empty()) return;
  // A line that wraps could not be erased.
  WriteAll(absl::StrCat(kEraseLine, text_.substr(0, TerminalColumns() - 1)));
  drawn_ = true;
}

void ProgressLine::Show(std::string text) {
  const std::lock_guard lock(mutex_);
  if (drawn_ && text == text_) return;
  text_ = std::move(text);
  Draw();
}

void ProgressLine::WriteAbove(std::string_view lines) {
  if (lines.empty()) return;
  const std::lock_guard lock(mutex_);
  if (drawn_) WriteAll(kEraseLine);
  lines_.Write(lines);
  Draw();
}

void ProgressLine::Erase() {
  const std::lock_guard lock(mutex_);
  if (drawn_) WriteAll(kEraseLine);
  drawn_ = false;
  text_.clear();
}

std::string ProgressBar(double done, double all, std::string_view unit) {
  const double share = all > 0 ? std::clamp(done / all, 0.0, 1.0) : 0;
  const int cells = static_cast<int>(share * kBarCells);
  std::string text = absl::StrFormat("[%s%s] %3.0f %%", std::string(cells, '#'), std::string(kBarCells - cells, '.'),
                                     std::min(100.0, 100 * share));
  if (!unit.empty()) absl::StrAppendFormat(&text, "  %.0f of %.0f %s", done, all, AbslSv(unit));
  return text;
}

std::string ElapsedText(std::chrono::duration<double> elapsed) {
  const int seconds = static_cast<int>(elapsed.count());
  return seconds < 60 ? absl::StrFormat("%d s", seconds) : absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
}

TickingLine::TickingLine(ProgressLine& line, Text text) : line_(line) {
  if (!line.shows()) return;
  thread_ = std::jthread([&line, text = std::move(text)](const std::stop_token& stop) {
    const auto start = std::chrono::steady_clock::now();
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    for (int tick = 0;; ++tick) {
      wake.wait_for(lock, stop, kTick, [] { return false; });
      if (stop.stop_requested()) return;
      if (tick >= kQuietTicks) line.Show(text(std::chrono::steady_clock::now() - start));
    }
  });
}

TickingLine::~TickingLine() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  line_.Erase();
}

}  // namespace winnow
