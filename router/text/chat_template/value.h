#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/json.h"
#include "common/base/status.h"

namespace winnow::chat_template {

class Value;
struct List;
struct Dict;
struct Callable;
struct Loop;

struct Undefined {
  std::shared_ptr<const std::string> hint;  // what was looked up, for errors; may be null
};
struct None {};

// A value of a template, with Python's meaning. Cheap to copy: strings are shared, containers belong to the Heap of the
// render and are referred to, so that they are mutable and may form cycles.
class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None none) : data_(none) {}               // NOLINT(google-explicit-constructor)
  Value(bool b) : data_(b) {}                     // NOLINT(google-explicit-constructor)
  Value(int64_t i) : data_(i) {}                  // NOLINT(google-explicit-constructor)
  Value(double d) : data_(d) {}                   // NOLINT(google-explicit-constructor)
  Value(List* list) : data_(list) {}              // NOLINT(google-explicit-constructor)
  Value(Dict* dict) : data_(dict) {}              // NOLINT(google-explicit-constructor)
  Value(Callable* callable) : data_(callable) {}  // NOLINT(google-explicit-constructor)
  Value(Loop* loop) : data_(loop) {}              // NOLINT(google-explicit-constructor)
  static Value String(std::string s);
  static Value UndefinedNamed(std::string_view what);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<StringPtr>(data_); }
  bool is_list() const { return std::holds_alternative<List*>(data_); }
  bool is_dict() const { return std::holds_alternative<Dict*>(data_); }
  bool is_callable() const { return std::holds_alternative<Callable*>(data_); }
  bool is_loop() const { return std::holds_alternative<Loop*>(data_); }
  // As in Python, bool is a kind of int.
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }

  // Each requires the kind.
  bool AsBool() const { return std::get<bool>(data_); }
  int64_t AsInt() const { return is_bool() ? int64_t{AsBool()} : std::get<int64_t>(data_); }
  double AsDouble() const { return is_float() ? std::get<double>(data_) : static_cast<double>(AsInt()); }
  const std::string& AsString() const { return *std::get<StringPtr>(data_); }
  List& AsList() const { return *std::get<List*>(data_); }
  Dict& AsDict() const { return *std::get<Dict*>(data_); }
  Callable& AsCallable() const { return *std::get<Callable*>(data_); }
  Loop& AsLoop() const { return *std::get<Loop*>(data_); }

  // Python's truth value.
  bool Truthy() const;
  // Python's name of the type, for errors.
  std::string_view TypeName() const;
  // For errors about an undefined value: "'x' is undefined".
  std::string UndefinedMessage() const;

 private:
  using StringPtr = std::shared_ptr<const std::string>;
  std::variant<Undefined, None, bool, int64_t, double, StringPtr, List*, Dict*, Callable*, Loop*> data_;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
};

// Keys are strings, in the order of insertion.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  absl::flat_hash_map<std::string, size_t> index;
  bool is_namespace = false;

  const Value* Find(std::string_view key) const;
  void Set(std::string_view key, Value value);
};

// State of the innermost for loop; `items` belongs to the loop.
struct Loop {
  const std::vector<Value>* items = nullptr;
  size_t index0 = 0;
};

struct Macro;
struct Scope;

// A macro, a method bound to its object, or a global function.
struct Callable {
  const Macro* macro = nullptr;
  Scope* closure = nullptr;  // where the macro was defined
  std::optional<Value> self = std::nullopt;
  std::string name;  // of the method or function
};

// Variables of one template level.
struct Scope {
  Scope* parent = nullptr;
  absl::flat_hash_map<std::string, Value> variables;
};

struct Limits {
  int64_t max_steps = 5'000'000;     // evaluated expressions, statements and compared elements
  int64_t max_bytes = 64 << 20;      // of everything allocated in a render
  int64_t max_work_bytes = 1 << 30;  // bytes read by string functions
  int64_t max_output_bytes = 64 << 20;
};

// Owns the containers of one render and counts what it spends. Not thread-safe.
class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  List* NewList(std::vector<Value> items = {}, bool is_tuple = false);
  Dict* NewDict();
  Callable* NewCallable(Callable callable);
  Loop* NewLoop();
  Scope* NewScope(Scope* parent);

  // ResourceExhausted when the render has used up its share. Charges of bytes also count as work.
  absl::Status Step(int64_t count = 1);
  absl::Status ChargeBytes(size_t bytes);
  absl::Status ChargeWork(size_t bytes);
  // Work of looking for a text in another, in the worst case.
  absl::Status ChargeSearch(std::string_view text, std::string_view needle) {
    return ChargeWork(text.size() * (1 + needle.size() / 16));
  }
  const Limits& limits() const { return limits_; }

  // A string made by the template.
  absl::StatusOr<Value> String(std::string s);
  // ordered_json keeps the order of members, which tojson shows.
  absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth = 0);

 private:
  const Limits limits_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  int64_t work_bytes_ = 0;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Callable> callables_;
  std::deque<Loop> loops_;
  std::deque<Scope> scopes_;
};

// Arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a position or of a name; null when absent.
  const Value* Get(size_t position, std::string_view name) const;
};

}  // namespace winnow::chat_template
