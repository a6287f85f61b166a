#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/tokenizer/regex.h"

#include <pcre2.h>

#include <cctype>
#include <utility>

#include "common/base/check.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

// One match of a split pattern takes a few steps per character. JIT and interpreter count differently, both stop.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kHeapLimitKibibytes = 64 * 1024;
constexpr size_t kJitStackStartBytes = 32 * 1024;
constexpr size_t kJitStackMaxBytes = 4 * 1024 * 1024;
constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr int kMaxSetDepth = 16;

constexpr std::string_view kSpaceItems =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWordItems = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHexItems = "0-9a-fA-F";

std::string Set(bool negated, std::string_view items) {
  return absl::StrCat(negated ? "[^" : "[", AbslSv(items), "]");
}

// The items of a class escape (\s, \w, \h and their negations), empty for any other escape.
std::string_view ClassItems(char letter) {
  switch (std::tolower(static_cast<unsigned char>(letter))) {
    case 's':
      return kSpaceItems;
    case 'w':
      return kWordItems;
    case 'h':
      return kHexItems;
    default:
      return {};
  }
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '{') {
        Brace();
        continue;
      }
      // The atom that a quantifier behind it would repeat: for a group, from its opening bracket.
      if (c == '(') {
        groups_.push_back(out_.size());
      } else if (c == ')' && !groups_.empty()) {
        atom_begin_ = groups_.back();
        groups_.pop_back();
      } else if (std::string_view("*+?").find(c) == std::string_view::npos && !IsContinuation(c)) {
        atom_begin_ = out_.size();
      }
      if (c == '\\') {
        WINNOW_RETURN_IF_ERROR(Escape(/*in_set=*/false));
      } else if (c == '[') {
        WINNOW_RETURN_IF_ERROR(CharacterSet());
      } else {
        out_.push_back(c);
        ++pos_;
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status Escape(bool in_set) {
    if (pos_ + 1 >= in_.size()) return absl::InvalidArgumentError("regex ends in a backslash");
    const char letter = in_[pos_ + 1];
    const std::string_view items = ClassItems(letter);
    const bool negated = std::isupper(static_cast<unsigned char>(letter)) != 0;
    if (!items.empty() && !(in_set && negated)) {
      out_.append(in_set ? std::string(items) : Set(negated, items));
      pos_ += 2;
      return absl::OkStatus();
    }
    size_t end = pos_ + 2;
    if ((letter == 'p' || letter == 'P' || letter == 'x') && end < in_.size() && in_[end] == '{') {
      end = in_.find('}', end);
      if (end == in_.npos) return absl::InvalidArgumentError("regex has an unclosed \\p{ or \\x{");
      ++end;
    }
    out_.append(in_.substr(pos_, end - pos_));
    pos_ = end;
    return absl::OkStatus();
  }

  // A set, from its opening bracket. PCRE2 has neither sets inside of sets nor intersections: [ab[c]] becomes
  // (?:[ab]|[c]), and [a&&b] becomes (?:(?=[b])[a]); each still matches one character.
  absl::Status CharacterSet() {
    WINNOW_ASSIGN_OR_RETURN(const std::string set, OneCharacter(/*depth=*/0));
    out_.append(set);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> OneCharacter(int depth) {
    const size_t start = pos_++;
    if (depth > kMaxSetDepth) {
      return absl::InvalidArgumentError(absl::StrCat("regex has sets nested too deep at offset ", start));
    }
    const bool negated = pos_ < in_.size() && in_[pos_] == '^';
    if (negated) ++pos_;
    std::vector<std::string> operands;  // of the intersection, but for the last
    std::string items, alternatives;    // of the last: what PCRE2 takes inside of brackets; "|" and a nested set each
    const auto operand = [&] {
      if (alternatives.empty()) return absl::StrCat("[", items, "]");
      return items.empty() ? absl::StrCat("(?:", alternatives.substr(1), ")")
                           : absl::StrCat("(?:[", items, "]", alternatives, ")");
    };
    bool first = true;
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      const bool ends = c == ']' && !first;
      const bool intersects = in_.substr(pos_, 2) == "&&";
      if ((ends || intersects) && items.empty() && alternatives.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("regex intersects with nothing at offset ", pos_));
      }
      first = false;
      if (ends) {
        ++pos_;
        return Combined(negated, items, alternatives.empty(), operands, operand());
      }
      if (intersects) {
        operands.push_back(operand());
        items.clear();
        alternatives.clear();
        pos_ += 2;
      } else if (c == '\\') {
        std::swap(out_, items);
        const absl::Status status = Escape(/*in_set=*/true);
        std::swap(out_, items);
        WINNOW_RETURN_IF_ERROR(status);
      } else if (c == '[' && in_.substr(pos_, 2) == "[:") {
        const size_t end = in_.find(":]", pos_);
        if (end == in_.npos) return absl::InvalidArgumentError("regex has an unclosed [:class:]");
        items.append(in_.substr(pos_, end + 2 - pos_));
        pos_ = end + 2;
      } else if (c == '[') {
        WINNOW_ASSIGN_OR_RETURN(const std::string nested, OneCharacter(depth + 1));
        absl::StrAppend(&alternatives, "|", nested);
      } else {
        items.push_back(c);
        ++pos_;
      }
    }
    return absl::InvalidArgumentError(absl::StrCat("regex has an unclosed character set at offset ", start));
  }

  static std::string Combined(bool negated, std::string_view items, bool plain,
                              const std::vector<std::string>& operands, const std::string& last) {
    if (operands.empty() && plain) return Set(negated, items);
    std::string all = last;
    for (const std::string& operand : operands) all = absl::StrCat("(?=", operand, ")", all);
    return negated ? absl::StrCat("(?:(?!", all, ")(?s:.))") : absl::StrCat("(?:", all, ")");
  }

  void Brace() {
    size_t end = pos_ + 1;
    while (end < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',')) ++end;
    const bool interval = end < in_.size() && in_[end] == '}' && end > pos_ + 1;
    if (!interval) {
      out_.push_back(in_[pos_++]);
      return;
    }
    std::string_view body = in_.substr(pos_ + 1, end - pos_ - 1);
    out_.append(body.front() == ',' && body.size() > 1 ? "{0" : "{").append(body).append("}");
    pos_ = end + 1;
    if (pos_ < in_.size() && in_[pos_] == '+') {
      out_.insert(atom_begin_, "(?:");
      out_.append(")+");
      ++pos_;
    }
  }

  static bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

  const std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_begin_ = 0;       // in out_
  std::vector<size_t> groups_;  // where the open ones begin in out_
};

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[256];
  const int length = pcre2_get_error_message(code, buffer, sizeof(buffer));
  return length < 0 ? absl::StrCat("PCRE2 error ", code) : std::string(reinterpret_cast<char*>(buffer));
}

// Match data, limits and a JIT stack for one FindAll.
class MatchScratch {
 public:
  explicit MatchScratch(const pcre2_code* code)
      : data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)) {
    WINNOW_CHECK(data_ != nullptr && context_ != nullptr);
    pcre2_set_match_limit(context_, kMatchLimit);
    pcre2_set_heap_limit(context_, kHeapLimitKibibytes);
    if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~MatchScratch() {
    pcre2_jit_stack_free(stack_);
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
  }
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

  pcre2_match_data* data() const { return data_; }
  pcre2_match_context* context() const { return context_; }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern) {
  return Translator(pattern).Run();
}

void Regex::CodeDeleter::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("regex of ", pattern.size(), " bytes, the limit is ", kMaxPatternBytes));
  }
  WINNOW_ASSIGN_OR_RETURN(const std::string translated, TranslateOnigurumaPattern(pattern));
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  WINNOW_CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context, 100);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Ruby syntax: ^ and $ match at every line.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("regex does not compile at offset ", offset, ": ", PcreMessage(error)));
  }
  Regex regex;
  regex.pattern_ = std::string(pattern);
  regex.code_.reset(code);
  // Where JIT is not available the interpreter runs the same pattern.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return regex;
}

absl::Status Regex::FindAll(std::string_view text, std::vector<TextSpan>* matches) const {
  if (text.empty()) return absl::OkStatus();
  const MatchScratch scratch(code_.get());
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch.data());
  size_t start = 0;
  size_t last_end = std::string_view::npos;
  while (start <= text.size()) {
    const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                               PCRE2_NO_UTF_CHECK, scratch.data(), scratch.context());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("regex match stopped at byte ", start, " of the text: ", PcreMessage(rc)));
    }
    // \K inside a lookaround can put the start behind the end; no real pattern does.
    if (offsets[0] > offsets[1] || offsets[1] < start) return absl::InvalidArgumentError("regex match runs backwards");
    if (offsets[0] == offsets[1] && offsets[0] == last_end) {
      start += start < text.size() ? Utf8SequenceBytes(static_cast<unsigned char>(text[start])) : 1;
      continue;
    }
    matches->push_back({offsets[0], offsets[1]});
    start = last_end = offsets[1];
  }
  return absl::OkStatus();
}

}  // namespace winnow
