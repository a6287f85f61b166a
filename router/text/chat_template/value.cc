#include "router/text/chat_template/value.h"

#include <limits>

#include "common/tokenizer/utf8.h"

namespace winnow::chat_template {
namespace {

constexpr int kMaxJsonDepth = 64;
constexpr size_t kObjectBytes = 128;  // a container without its elements, about

}  // namespace

Value Value::String(std::string s) {
  Value value;
  value.data_ = std::make_shared<const std::string>(std::move(s));
  return value;
}

Value Value::UndefinedNamed(std::string_view what) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(what)};
  return value;
}

bool Value::Truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_integral()) return AsInt() != 0;
  if (is_float()) return AsDouble() != 0;
  if (is_string()) return !AsString().empty();
  if (is_list()) return !AsList().items.empty();
  if (is_dict()) return AsDict().is_namespace || !AsDict().entries.empty();
  return true;
}

std::string_view Value::TypeName() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return AsList().is_tuple ? "tuple" : "list";
  if (is_dict()) return AsDict().is_namespace ? "namespace" : "dict";
  if (is_loop()) return "loop";
  return "function";
}

std::string Value::UndefinedMessage() const {
  const auto& hint = std::get<Undefined>(data_).hint;
  return absl::StrCat(hint == nullptr ? std::string("the value") : absl::StrCat("'", *hint, "'"), " is undefined");
}

const Value* Dict::Find(std::string_view key) const {
  const auto it = index.find(AbslSv(key));
  return it == index.end() ? nullptr : &entries[it->second].second;
}

void Dict::Set(std::string_view key, Value value) {
  const auto [it, inserted] = index.try_emplace(std::string(key), entries.size());
  if (inserted) {
    entries.emplace_back(std::string(key), std::move(value));
  } else {
    entries[it->second].second = std::move(value);
  }
}

List* Heap::NewList(std::vector<Value> items, bool is_tuple) {
  bytes_ += static_cast<int64_t>(kObjectBytes + items.size() * sizeof(Value));
  return &lists_.emplace_back(List{std::move(items), is_tuple});
}

Dict* Heap::NewDict() {
  bytes_ += 2 * kObjectBytes;
  return &dicts_.emplace_back();
}

Callable* Heap::NewCallable(Callable callable) {
  bytes_ += 2 * kObjectBytes;
  return &callables_.emplace_back(std::move(callable));
}

Loop* Heap::NewLoop() {
  bytes_ += kObjectBytes;
  return &loops_.emplace_back();
}

Scope* Heap::NewScope(Scope* parent) {
  bytes_ += 2 * kObjectBytes;
  Scope& scope = scopes_.emplace_back();
  scope.parent = parent;
  return &scope;
}

absl::Status Heap::Step(int64_t count) {
  steps_ += count;
  if (steps_ > limits_.max_steps) {
    return absl::ResourceExhaustedError(absl::StrCat("the template takes more than ", limits_.max_steps, " steps"));
  }
  if (bytes_ > limits_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the template needs more than ", limits_.max_bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Heap::ChargeBytes(size_t bytes) {
  if (bytes > static_cast<size_t>(limits_.max_bytes)) bytes_ = limits_.max_bytes;
  bytes_ += static_cast<int64_t>(std::min(bytes, static_cast<size_t>(limits_.max_bytes)));
  WINNOW_RETURN_IF_ERROR(Step(0));
  return ChargeWork(bytes);
}

absl::Status Heap::ChargeWork(size_t bytes) {
  work_bytes_ += static_cast<int64_t>(std::min(bytes, static_cast<size_t>(limits_.max_work_bytes)));
  if (work_bytes_ > limits_.max_work_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the template reads more than ", limits_.max_work_bytes, " bytes of text"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Heap::String(std::string s) {
  WINNOW_RETURN_IF_ERROR(ChargeBytes(s.size() + 64));
  return Value::String(std::move(s));
}

absl::StatusOr<Value> Heap::FromJson(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxJsonDepth) return absl::InvalidArgumentError("a variable is nested too deeply");
  switch (json.type()) {
    case nlohmann::json::value_t::null:
      return Value(None{});
    case nlohmann::json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Value(static_cast<double>(json.get<uint64_t>()));
      }
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::json::value_t::string:
      if (FindInvalidUtf8(json.get_ref<const std::string&>()) != std::string::npos) {
        return absl::InvalidArgumentError("a string is not UTF-8");
      }
      return String(json.get_ref<const std::string&>());
    case nlohmann::json::value_t::array: {
      List* list = NewList();
      for (const auto& element : json) {
        WINNOW_RETURN_IF_ERROR(ChargeBytes(sizeof(Value)));
        WINNOW_ASSIGN_OR_RETURN(Value item, FromJson(element, depth + 1));
        list->items.push_back(std::move(item));
      }
      return Value(list);
    }
    case nlohmann::json::value_t::object: {
      Dict* dict = NewDict();
      for (const auto& [key, element] : json.items()) {
        if (FindInvalidUtf8(key) != std::string::npos) return absl::InvalidArgumentError("a key is not UTF-8");
        WINNOW_RETURN_IF_ERROR(ChargeBytes(2 * key.size() + kObjectBytes));
        WINNOW_ASSIGN_OR_RETURN(Value item, FromJson(element, depth + 1));
        dict->Set(key, std::move(item));
      }
      return Value(dict);
    }
    default:
      return absl::InvalidArgumentError("a variable holds binary data");
  }
}

const Value* Arguments::Get(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

}  // namespace winnow::chat_template
