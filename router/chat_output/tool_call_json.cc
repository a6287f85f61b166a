#include "router/chat_output/tool_call_json.h"

#include <optional>
#include <utility>

#include "common/base/json.h"
#include "router/chat_output/markers.h"

namespace winnow {
namespace {

// What a JSON string says; nullopt when it is none.
std::optional<std::string> StringOf(const std::string& json) {
  const nlohmann::json value = ParseJson(json);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

bool IsSpace(char c) {
  return kJsonSpace.find(c) != kJsonSpace.npos;
}

}  // namespace

size_t ToolCallJson::Push(std::string_view text) {
  size_t taken = 0;
  while (taken < text.size() && state_ == State::kReading) {
    const std::string_view rest = text.substr(taken);
    if (step_ == Step::kInKey) {
      taken += TakeKey(rest);
    } else if (step_ == Step::kInValue) {
      taken += TakeValue(rest);
    } else if (IsSpace(rest.front())) {
      ++taken;
    } else {
      taken += TakePunctuation(rest);
    }
  }
  return taken;
}

size_t ToolCallJson::TakePunctuation(std::string_view text) {
  const char c = text.front();
  const bool ends_object = c == '}' && (step_ == Step::kAfterValue || (step_ == Step::kKey && first_member_));
  if (ends_object) {
    state_ = has_name_ ? State::kDone : State::kBroken;
  } else if (step_ == Step::kOpen && c == '{') {
    step_ = Step::kKey;
  } else if (step_ == Step::kKey && c == '"') {
    text_.clear();
    value_ = {};
    step_ = Step::kInKey;
    return 0;  // the quote belongs to the key
  } else if (step_ == Step::kColon && c == ':') {
    step_ = Step::kBeforeValue;
  } else if (step_ == Step::kBeforeValue) {
    text_.clear();
    value_ = {};
    wrapped_ = c == '"';
    if (member_ == Member::kArguments) {
      if (c != '{' && c != '"' && c != 'n') return Break(), 0;  // n: null
      if (c != 'n') has_arguments_ = true;
    }
    step_ = Step::kInValue;
    return 0;
  } else if (step_ == Step::kAfterValue && c == ',') {
    first_member_ = false;
    step_ = Step::kKey;
  } else {
    return Break(), 0;
  }
  return 1;
}

size_t ToolCallJson::TakeKey(std::string_view text) {
  const size_t taken = value_.Push(text);
  text_ += text.substr(0, taken);
  if (value_.done()) EndKey();
  return taken;
}

void ToolCallJson::EndKey() {
  const std::optional<std::string> key = StringOf(text_);
  if (!key) return Break();
  member_ = Member::kOther;
  if (*key == "name" && !has_name_) member_ = Member::kName;
  if ((*key == "arguments" || *key == "parameters") && !has_arguments_) member_ = Member::kArguments;
  step_ = Step::kColon;
}

size_t ToolCallJson::TakeValue(std::string_view text) {
  const size_t taken = value_.Push(text);
  const std::string_view piece = text.substr(0, taken);
  if (member_ == Member::kArguments && !wrapped_) {
    arguments_ += piece;
  } else if (member_ != Member::kOther) {
    text_ += piece;
  }
  if (value_.done()) EndValue();
  return taken;
}

void ToolCallJson::EndValue() {
  step_ = Step::kAfterValue;
  if (member_ == Member::kOther) return;
  if (member_ == Member::kArguments && !wrapped_) {
    if (!has_arguments_) arguments_.clear();  // null: none
    return;
  }
  const std::optional<std::string> value = StringOf(text_);
  if (!value || (member_ == Member::kName && value->empty())) return Break();
  if (member_ == Member::kArguments) {
    arguments_ += *value;
  } else {
    name_ = *value;
    has_name_ = true;
  }
}

std::string ToolCallJson::TakeArguments() {
  return std::exchange(arguments_, {});
}

}  // namespace winnow
