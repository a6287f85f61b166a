#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/grammar/grammar_text.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

class GrammarWriter {
 public:
  explicit GrammarWriter(const Grammar& grammar) : grammar_(grammar), names_(grammar.rules().size()) {}

  absl::StatusOr<std::string> Write() {
    taken_.insert("root");
    names_[grammar_.root()] = "root";
    needed_.push_back(grammar_.root());
    for (size_t i = 0; i < needed_.size(); ++i) {
      const Grammar::RuleId rule = needed_[i];
      absl::StrAppend(&text_, *names_[rule], " ::= ");
      if (!grammar_.rules()[rule].body.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("rule \"", grammar_.rules()[rule].name, "\" is not defined"));
      }
      WriteExpr(*grammar_.rules()[rule].body, /*is_part=*/false);
      text_ += '\n';
      if (text_.size() > kMaxGrammarTextBytes || grammar_.is_too_large()) {
        return absl::ResourceExhaustedError("the grammar is too large");
      }
    }
    return std::move(text_);
  }

 private:
  const std::string& NameOf(Grammar::RuleId rule) {
    std::optional<std::string>& name = names_[rule];
    if (!name.has_value()) {
      std::string wanted;
      for (const char c : grammar_.rules()[rule].name) {
        const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
        wanted += fits ? c : '-';
      }
      if (wanted.empty()) wanted = "rule";
      name = wanted;
      while (!taken_.insert(*name).second) name = absl::StrCat(wanted, "_", ++next_number_);
      needed_.push_back(rule);
    }
    return *name;
  }

  static void AppendCharacter(char32_t c, std::string_view escaped, std::string* out) {
    if (c < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(out, "\\x%02x", static_cast<uint32_t>(c));
    } else if (c < 0x80) {
      if (escaped.find(static_cast<char>(c)) != escaped.npos) *out += '\\';
      *out += static_cast<char>(c);
    } else if (c >= 0xA0 && c < 0x2000) {
      AppendUtf8(c, out);
    } else if (c <= 0xFFFF) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      absl::StrAppendFormat(out, "\\U%08x", static_cast<uint32_t>(c));
    }
  }

  void WriteText(std::string_view bytes) {
    text_ += '"';
    for (size_t at = 0; at < bytes.size();) AppendCharacter(NextCodePoint(bytes, &at), "\"\\", &text_);
    text_ += '"';
  }

  void WriteClass(const std::vector<CodePointRange>& ranges) {
    text_ += '[';
    for (const CodePointRange& range : ranges) {
      AppendCharacter(range.first, "\\[]-^", &text_);
      if (range.last == range.first) continue;
      text_ += '-';
      AppendCharacter(range.last, "\\[]-^", &text_);
    }
    text_ += ']';
  }

  // `is_part`: of a sequence or repetition, where a choice needs parentheses.
  void WriteExpr(Grammar::ExprId id, bool is_part) {
    const Grammar::Expr& expr = grammar_.expr(id);
    if (text_.size() > kMaxGrammarTextBytes) return;
    switch (expr.kind) {
      case Grammar::Kind::kEmpty:
        text_ += "\"\"";
        return;
      case Grammar::Kind::kBytes:
        return WriteText(expr.bytes);
      case Grammar::Kind::kCharacter:
        return WriteClass(expr.ranges);
      case Grammar::Kind::kRule:
        text_ += NameOf(expr.rule);
        return;
      case Grammar::Kind::kSequence:
        if (is_part) text_ += '(';
        WriteList(expr.parts, " ");
        if (is_part) text_ += ')';
        return;
      case Grammar::Kind::kChoice:
        if (expr.parts.empty()) return WriteClass({});
        if (is_part) text_ += '(';
        WriteList(expr.parts, " | ");
        if (is_part) text_ += ')';
        return;
      case Grammar::Kind::kRepeat: {
        const bool repeats = grammar_.expr(expr.parts[0]).kind == Grammar::Kind::kRepeat;
        if (repeats) text_ += '(';
        WriteExpr(expr.parts[0], /*is_part=*/true);
        if (repeats) text_ += ')';
        absl::StrAppend(&text_, "{", expr.min, ",");
        if (expr.max.has_value()) absl::StrAppend(&text_, *expr.max);
        text_ += '}';
        return;
      }
    }
  }

  void WriteList(const std::vector<Grammar::ExprId>& parts, std::string_view between) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) text_ += between;
      WriteExpr(parts[i], /*is_part=*/true);
    }
  }

  const Grammar& grammar_;
  std::vector<std::optional<std::string>> names_;
  std::set<std::string> taken_;
  std::vector<Grammar::RuleId> needed_;
  uint32_t next_number_ = 0;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> GrammarText(const Grammar& grammar) {
  return GrammarWriter(grammar).Write();
}

}  // namespace winnow
