#include "common/tokenizer/json_node.h"

#include <limits>

namespace winnow {
namespace {

// Offset of the first bracket that opens a level beyond max_depth, or npos. Looks at brackets outside of strings only;
// whether the text is JSON at all is the parser's business.
size_t FindTooDeep(std::string_view bytes, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::string_view::npos;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseBoundedJson(std::string_view bytes, int max_depth) {
  if (const size_t at = FindTooDeep(bytes, max_depth); at != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("JSON nested deeper than ", max_depth, " levels at byte ", at));
  }
  try {
    return nlohmann::json::parse(bytes.begin(), bytes.end());
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON: ", e.what()));
  }
}

absl::Status JsonNode::Error(std::string_view what) const {
  return absl::InvalidArgumentError(path_.empty() ? std::string(what) : absl::StrCat(path_, ": ", AbslSv(what)));
}

absl::Status JsonNode::ErrorAt(std::string_view key, std::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, path_.empty() ? "" : ".", AbslSv(key), ": ", AbslSv(what)));
}

bool JsonNode::Has(std::string_view key) const {
  if (!value_->is_object()) return false;
  const auto it = value_->find(key);
  return it != value_->end() && !it->is_null();
}

absl::StatusOr<JsonNode> JsonNode::Member(std::string_view key) const {
  WINNOW_RETURN_IF_ERROR(RequireObject());
  const auto it = value_->find(key);
  if (it == value_->end()) return ErrorAt(key, "missing");
  return JsonNode(&*it, absl::StrCat(path_, path_.empty() ? "" : ".", AbslSv(key)));
}

absl::Status JsonNode::RequireArray() const {
  return value_->is_array() ? absl::OkStatus() : Error(absl::StrCat("expected an array, got ", value_->type_name()));
}

absl::Status JsonNode::RequireObject() const {
  return value_->is_object() ? absl::OkStatus() : Error(absl::StrCat("expected an object, got ", value_->type_name()));
}

JsonNode JsonNode::Element(size_t index) const {
  return JsonNode(&(*value_)[index], absl::StrCat(path_, "[", index, "]"));
}

absl::StatusOr<std::string> JsonNode::AsString() const {
  if (!value_->is_string()) return Error(absl::StrCat("expected a string, got ", value_->type_name()));
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<uint32_t> JsonNode::AsUint32() const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
    return Error(absl::StrCat("expected a 32-bit unsigned integer, got ",
                              value_->is_number() ? value_->dump() : std::string(value_->type_name())));
  }
  return value_->get<uint32_t>();
}

absl::StatusOr<std::string> JsonNode::String(std::string_view key) const {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode member, Member(key));
  return member.AsString();
}

absl::StatusOr<std::string> JsonNode::StringOr(std::string_view key, std::string_view fallback) const {
  WINNOW_RETURN_IF_ERROR(RequireObject());
  return Has(key) ? String(key) : std::string(fallback);
}

absl::StatusOr<bool> JsonNode::BoolOr(std::string_view key, bool fallback) const {
  WINNOW_RETURN_IF_ERROR(RequireObject());
  if (!Has(key)) return fallback;
  const nlohmann::json& member = *value_->find(key);
  if (!member.is_boolean()) return ErrorAt(key, absl::StrCat("expected true or false, got ", member.type_name()));
  return member.get<bool>();
}

absl::StatusOr<uint32_t> JsonNode::Uint32(std::string_view key) const {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode member, Member(key));
  return member.AsUint32();
}

}  // namespace winnow
