#pragma once
#include <memory>
#include <string>

namespace winnow {

// Reads lines from a person: with editing, a history that a file keeps, and pasted documents, where stdin is a
// terminal; plainly, without prompts, where it is not. One at a time in a process, on its main thread, which has UTF-8
// as its character set from then on.
class LineEditor {
 public:
  // `history_file` empty: the history ends with the object. Its folder is made where it is missing.
  explicit LineEditor(const std::string& history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class End { kLine, kInterrupted, kEndOfInput };
  struct Line {
    End end = End::kLine;
    std::string text;  // of kLine, without the line feed
  };
  // A paste of several lines, or a long one, is shown as a short note, and the text has all of it in its place.
  // kInterrupted: Ctrl-C, and the line is dropped; kEndOfInput: Ctrl-D in an empty line, or the end of a file.
  Line Read(const std::string& prompt);

  bool is_terminal() const { return terminal_ != nullptr; }

 private:
  class Terminal;
  const std::unique_ptr<Terminal> terminal_;  // null: stdin is none
};

// $XDG_STATE_HOME/winnow/chat_history, or below ~/.local/state; empty where there is no home.
std::string DefaultHistoryFile();

}  // namespace winnow
