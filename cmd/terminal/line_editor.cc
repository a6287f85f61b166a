#include "cmd/terminal/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>

#include "cmd/terminal/pasted_texts.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr int kHistoryLines = 1000;
// Bracketed paste: terminals that know it put marks around what is pasted.
constexpr char kBeginMarks[] = "\033[?2004h";
constexpr char kEndMarks[] = "\033[?2004l";
constexpr char kPasteBegins[] = "\\e[200~";  // in the words of EL_BIND
constexpr std::string_view kPasteEnds = "\033[201~";

}  // namespace

class LineEditor::Terminal {
 public:
  explicit Terminal(const std::string& history_file) : history_file_(history_file) {
    // Bytes of other character sets could not be told apart.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) history(history_, &event, H_LOAD, history_file_.c_str());

    editor_ = el_init("winnow", stdin, stdout, stderr);
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &Terminal::Prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_SIGNAL, 1);
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_ADDFN, "winnow-interrupt", "Drop the line", &Terminal::Interrupt);
    el_set(editor_, EL_ADDFN, "winnow-paste", "Take a paste", &Terminal::Paste);
    el_source(editor_, nullptr);  // a person's own ~/.editrc
    el_set(editor_, EL_BIND, "^C", "winnow-interrupt", nullptr);
    el_set(editor_, EL_BIND, kPasteBegins, "winnow-paste", nullptr);
    // While a line is edited Ctrl-C is a key like others.
    el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);
  }

  ~Terminal() {
    el_end(editor_);
    history_end(history_);
  }

  Line Read(const std::string& prompt) {
    prompt_ = prompt;
    interrupted_ = false;
    Show(kBeginMarks);
    // el_gets would show the prompt first, and a key pressed in that moment would meet the terminal's own settings,
    // under which Ctrl-C ends the process.
    el_set(editor_, EL_PREP_TERM, 1);
    int count = 0;
    const char* read = el_gets(editor_, &count);
    Show(kEndMarks);
    if (interrupted_) {
      Show("^C\n");
      return {End::kInterrupted, ""};
    }
    if (read == nullptr || count <= 0) return {End::kEndOfInput, ""};
    std::string line(read, static_cast<size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    Remember(line);
    return {End::kLine, pastes_.Expand(line)};
  }

 private:
  static Terminal* Of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Terminal*>(self);
  }

  static char* Prompt(EditLine* editor) { return Of(editor)->prompt_.data(); }

  static unsigned char Interrupt(EditLine* editor, int /*key*/) {
    Of(editor)->interrupted_ = true;
    return CC_NEWLINE;
  }

  static unsigned char Paste(EditLine* editor, int /*key*/) {
    std::string text;
    for (wchar_t character; el_wgetc(editor, &character) == 1;) {
      AppendUtf8(static_cast<char32_t>(character), &text);
      if (!text.ends_with(kPasteEnds)) continue;
      text.resize(text.size() - kPasteEnds.size());
      break;
    }
    const std::string shown = Of(editor)->pastes_.Add(WithLineFeeds(text));
    return el_insertstr(editor, shown.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  void Remember(const std::string& line) {
    if (line.empty()) return;
    HistEvent event;
    history(history_, &event, H_ENTER, line.c_str());
    if (history_file_.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(history_file_).parent_path(), ignored);
    history(history_, &event, H_SAVE, history_file_.c_str());  // for its owner alone
  }

  static void Show(const char* text) {
    std::fputs(text, stdout);
    std::fflush(stdout);
  }

  const std::string history_file_;
  History* history_ = nullptr;
  EditLine* editor_ = nullptr;
  std::string prompt_;
  PastedTexts pastes_;
  bool interrupted_ = false;
};

LineEditor::LineEditor(const std::string& history_file)
    : terminal_(isatty(STDIN_FILENO) != 0 ? std::make_unique<Terminal>(history_file) : nullptr) {}
LineEditor::~LineEditor() = default;

LineEditor::Line LineEditor::Read(const std::string& prompt) {
  if (terminal_ != nullptr) return terminal_->Read(prompt);
  Line line;
  if (!std::getline(std::cin, line.text)) line.end = End::kEndOfInput;
  return line;
}

std::string DefaultHistoryFile() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') {
    return std::string(state) + "/winnow/chat_history";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : std::string(home) + "/.local/state/winnow/chat_history";
}

}  // namespace winnow
