#pragma once
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "common/log/line_writer.h"

namespace winnow {

// The last line of a terminal, which says how far some long work is and is drawn over and over. Where stderr is no
// terminal, or a person wants quiet, nothing is written at all. Any thread.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet = false);
  ~ProgressLine() { Erase(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool shows() const { return shows_; }
  void Show(std::string text);
  // Lines written through here stand above the progress, which stays the last line; also where nothing is shown.
  void WriteAbove(std::string_view lines);
  void Erase();

 private:
  void Draw();  // under the lock

  const bool shows_;
  std::mutex mutex_;
  LineWriter lines_;
  std::string text_;
  bool drawn_ = false;
};

// "[####......]  40 %  12 of 30 requests": `unit` may be empty.
std::string ProgressBar(double done, double all, std::string_view unit);
// "1:05" or "12 s" of a wait.
std::string ElapsedText(std::chrono::duration<double> elapsed);

// Shows a text that changes by itself: `text` is asked ten times a second, from a thread of its own, with the time
// since the beginning, until the object ends. Nothing is shown of the first moments, so that short waits leave no
// trace.
class TickingLine {
 public:
  using Text = std::function<std::string(std::chrono::duration<double> elapsed)>;
  TickingLine(ProgressLine& line, Text text);
  ~TickingLine();

 private:
  ProgressLine& line_;
  std::jthread thread_;
};

}  // namespace winnow
