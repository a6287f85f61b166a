#include "router/text/chat_template/value_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

#include "common/tokenizer/utf8.h"

namespace winnow::chat_template {
namespace {

constexpr int kMaxWrittenDepth = 64;

void AppendHex(uint32_t value, int digits, std::string* out) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), "%0*x", digits, value);
  out->append(buffer);
}

void AppendStringRepr(std::string_view s, std::string* out) {
  const bool double_quoted = s.find('\'') != s.npos && s.find('"') == s.npos;
  const char quote = double_quoted ? '"' : '\'';
  out->push_back(quote);
  for (const char c : s) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (byte < 0x20 || byte == 0x7F) {
      out->append("\\x");
      AppendHex(byte, 2, out);
    } else {
      out->push_back(c);
    }
  }
  out->push_back(quote);
}

void AppendJsonString(std::string_view s, bool ensure_ascii, std::string* out) {
  out->push_back('"');
  for (size_t pos = 0; pos < s.size();) {
    const size_t begin = pos;
    const char32_t c = NextCodePoint(s, &pos);
    switch (c) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      case '\b':
        out->append("\\b");
        break;
      case '\f':
        out->append("\\f");
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
          out->append("\\u");
          AppendHex(c, 4, out);
        } else if (ensure_ascii && c >= 0x10000) {
          out->append("\\u");
          AppendHex(0xD800 + ((c - 0x10000) >> 10), 4, out);
          out->append("\\u");
          AppendHex(0xDC00 + ((c - 0x10000) & 0x3FF), 4, out);
        } else {
          out->append(s.substr(begin, pos - begin));
        }
    }
  }
  out->push_back('"');
}

// Both writers share their limits: values may be cyclic, or share parts so that their text is exponentially long.
class Writer {
 public:
  explicit Writer(Heap* heap) : heap_(heap) {}

  absl::Status Repr(const Value& value, int depth) {
    WINNOW_RETURN_IF_ERROR(Enter(depth));
    if (value.is_string()) {
      AppendStringRepr(value.AsString(), &out_);
    } else if (value.is_list()) {
      const List& list = value.AsList();
      out_.push_back(list.is_tuple ? '(' : '[');
      for (size_t i = 0; i < list.items.size(); ++i) {
        if (i > 0) out_.append(", ");
        WINNOW_RETURN_IF_ERROR(Repr(list.items[i], depth + 1));
      }
      if (list.is_tuple && list.items.size() == 1) out_.push_back(',');
      out_.push_back(list.is_tuple ? ')' : ']');
    } else if (value.is_dict()) {
      out_.push_back('{');
      bool first = true;
      for (const auto& [key, item] : value.AsDict().entries) {
        if (!first) out_.append(", ");
        first = false;
        AppendStringRepr(key, &out_);
        out_.append(": ");
        WINNOW_RETURN_IF_ERROR(Repr(item, depth + 1));
      }
      out_.push_back('}');
    } else {
      AppendScalar(value);
    }
    return absl::OkStatus();
  }

  absl::Status Json(const Value& value, const JsonStyle& style, int depth) {
    WINNOW_RETURN_IF_ERROR(Enter(depth));
    if (value.is_none()) {
      out_.append("null");
    } else if (value.is_bool()) {
      out_.append(value.AsBool() ? "true" : "false");
    } else if (value.is_int()) {
      absl::StrAppend(&out_, value.AsInt());
    } else if (value.is_float()) {
      const double d = value.AsDouble();
      out_.append(std::isnan(d) ? "NaN" : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity") : FloatRepr(d));
    } else if (value.is_string()) {
      AppendJsonString(value.AsString(), style.ensure_ascii, &out_);
    } else if (value.is_list()) {
      const List& list = value.AsList();
      out_.push_back('[');
      for (size_t i = 0; i < list.items.size(); ++i) {
        Separator(style, depth, i == 0);
        WINNOW_RETURN_IF_ERROR(Json(list.items[i], style, depth + 1));
      }
      Close(style, depth, list.items.empty(), ']');
    } else if (value.is_dict() && !value.AsDict().is_namespace) {
      std::vector<const std::pair<std::string, Value>*> entries;
      for (const auto& entry : value.AsDict().entries) entries.push_back(&entry);
      if (style.sort_keys)
        std::sort(entries.begin(), entries.end(), [](auto a, auto b) { return a->first < b->first; });
      out_.push_back('{');
      for (size_t i = 0; i < entries.size(); ++i) {
        Separator(style, depth, i == 0);
        AppendJsonString(entries[i]->first, style.ensure_ascii, &out_);
        out_.append(style.key_separator);
        WINNOW_RETURN_IF_ERROR(Json(entries[i]->second, style, depth + 1));
      }
      Close(style, depth, entries.empty(), '}');
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("tojson: a value of type ", AbslSv(value.TypeName()), " cannot be written as JSON"));
    }
    return absl::OkStatus();
  }

  std::string Take() { return std::move(out_); }

 private:
  absl::Status Enter(int depth) {
    if (depth > kMaxWrittenDepth) return absl::InvalidArgumentError("a value is nested too deeply to be written");
    WINNOW_RETURN_IF_ERROR(heap_->Step());
    const size_t grown = out_.size() - charged_;
    charged_ = out_.size();
    return heap_->ChargeBytes(grown);
  }

  void AppendScalar(const Value& value) {
    if (value.is_undefined()) {
      out_.append("Undefined");
    } else if (value.is_none()) {
      out_.append("None");
    } else if (value.is_bool()) {
      out_.append(value.AsBool() ? "True" : "False");
    } else if (value.is_int()) {
      absl::StrAppend(&out_, value.AsInt());
    } else if (value.is_float()) {
      out_.append(FloatRepr(value.AsDouble()));
    } else {
      absl::StrAppend(&out_, "<", AbslSv(value.TypeName()), ">");
    }
  }

  void NewLine(const JsonStyle& style, int depth) {
    if (!style.indent.has_value()) return;
    out_.push_back('\n');
    out_.append(static_cast<size_t>(depth) * static_cast<size_t>(*style.indent), ' ');
  }
  void Separator(const JsonStyle& style, int depth, bool first) {
    if (!first) out_.append(style.item_separator.value_or(style.indent.has_value() ? "," : ", "));
    NewLine(style, depth + 1);
  }
  void Close(const JsonStyle& style, int depth, bool empty, char bracket) {
    if (!empty) NewLine(style, depth);
    out_.push_back(bracket);
  }

  Heap* const heap_;
  std::string out_;
  size_t charged_ = 0;
};

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const size_t e = text.find('e');
  int exponent = 0;
  const std::string_view exponent_text = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string digits;
  const bool negative = text[0] == '-';
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  std::string out = negative ? "-" : "";
  if (exponent < 0) {
    out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    out.append(digits, 0, whole).append(".").append(digits.size() > whole ? digits.substr(whole) : "0");
  }
  return out;
}

absl::StatusOr<std::string> ToText(Heap* heap, const Value& value) {
  if (value.is_undefined()) return std::string();
  if (value.is_string()) return value.AsString();
  return ToRepr(heap, value);
}

absl::StatusOr<std::string> ToRepr(Heap* heap, const Value& value) {
  Writer writer(heap);
  WINNOW_RETURN_IF_ERROR(writer.Repr(value, 0));
  return writer.Take();
}

absl::StatusOr<std::string> ToJson(Heap* heap, const Value& value, const JsonStyle& style) {
  Writer writer(heap);
  WINNOW_RETURN_IF_ERROR(writer.Json(value, style, 0));
  return writer.Take();
}

}  // namespace winnow::chat_template
