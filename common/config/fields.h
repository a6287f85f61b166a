#pragma once
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/config/parse_value.h"

namespace winnow {

// What values of an option look like, for schemas. kCustom has a parser of its own.
enum class FieldKind { kText, kFile, kFolder, kBool, kInteger, kNumber, kBytes, kDuration, kAddress, kChoice, kCustom };

// One option: how to read it from text, how to print it, what --help says.
struct Field {
  std::string name;      // "max-running" or, nested, "selection.budget"; '-' and '_' mean the same to users
  std::string type;      // for --help: "INT (1..64)", "HOST:PORT", "auto|cpu"
  std::string help;      // one or two sentences with cost and limits
  bool is_bool = false;  // "--name" alone means true
  std::function<absl::Status(std::string_view)> parse;
  std::function<std::string()> format;
  FieldKind kind = FieldKind::kCustom;
  double low = 0, high = 0;               // kInteger, kNumber, kBytes
  std::vector<std::string> choices = {};  // kChoice
};

// Collects the options of a struct. A struct of options declares each of its members once:
//
//   struct CacheRankOptions {
//     int64_t memory_bytes = int64_t{2} << 30;
//     int threads = 1;
//     void Declare(Fields& fields) {
//       fields.Bytes("memory", &memory_bytes, "Memory for KV blocks. Sequences that do not fit are refused.");
//       fields.Integer("threads", &threads, "Threads of the scoring team; more than cores makes steps slower.", 1,
//       256);
//     }
//   };
//
// Initial values of the members are the defaults. The struct must outlive the Fields.
class Fields {
 public:
  template <class Options>
  static Fields Of(Options& options) {
    Fields fields;
    options.Declare(fields);
    return fields;
  }

  void Text(std::string name, std::string* value, std::string help);
  // Paths, which a shell can complete. Whether there is anything at a path is checked where it is used.
  void File(std::string name, std::string* value, std::string help);
  void Folder(std::string name, std::string* value, std::string help);
  void Bool(std::string name, bool* value, std::string help);
  void Bytes(std::string name, int64_t* value, std::string help, int64_t low = 0,
             int64_t high = std::numeric_limits<int64_t>::max());
  void Address(std::string name, HostPort* value, std::string help);
  void Duration(std::string name, std::chrono::microseconds* value, std::string help);

  template <std::integral T>
  void Integer(std::string name, T* value, std::string help, T low = std::numeric_limits<T>::min(),
               T high = std::numeric_limits<T>::max()) {
    AddInteger(
        std::move(name), std::move(help), static_cast<int64_t>(low), ClampToInt64(high),
        [value](int64_t v) { *value = static_cast<T>(v); }, [value] { return absl::StrCat(*value); });
  }

  template <std::floating_point T>
  void Number(std::string name, T* value, std::string help, double low, double high) {
    AddNumber(
        std::move(name), std::move(help), low, high, [value](double v) { *value = static_cast<T>(v); },
        [value] { return absl::StrCat(*value); });
  }

  // One of a list of names.
  template <class E>
  void Enum(std::string name, E* value, std::vector<std::pair<std::string, E>> choices, std::string help) {
    std::vector<std::string> names;
    for (const auto& choice : choices) names.push_back(choice.first);
    AddChoice(
        std::move(name), std::move(help), std::move(names), [value, choices](size_t i) { *value = choices[i].second; },
        [value, choices] {
          for (const auto& choice : choices) {
            if (choice.second == *value) return choice.first;
          }
          return std::string("?");
        });
  }

  // The options of a struct inside the struct: names get "prefix." in front.
  template <class Options>
  void Nested(std::string_view prefix, Options* options) {
    Fields inner = Of(*options);
    for (Field& field : inner.fields_) {
      field.name = absl::StrCat(AbslSv(prefix), ".", field.name);
      fields_.push_back(std::move(field));
    }
  }

  // An option whose text has a parser of its own.
  void Custom(std::string name, std::string type, std::string help, std::function<absl::Status(std::string_view)> parse,
              std::function<std::string()> format);

  const std::vector<Field>& all() const { return fields_; }
  // The field of that name ('-' and '_' alike), or null.
  const Field* Find(std::string_view name) const;
  // The name most like `name`, or "" when none is like it.
  std::string Nearest(std::string_view name) const;

 private:
  template <std::integral T>
  static constexpr int64_t ClampToInt64(T value) {
    return std::cmp_greater(value, std::numeric_limits<int64_t>::max()) ? std::numeric_limits<int64_t>::max()
                                                                        : static_cast<int64_t>(value);
  }
  void AddInteger(std::string name, std::string help, int64_t low, int64_t high, std::function<void(int64_t)> set,
                  std::function<std::string()> format);
  void AddNumber(std::string name, std::string help, double low, double high, std::function<void(double)> set,
                 std::function<std::string()> format);
  void AddChoice(std::string name, std::string help, std::vector<std::string> names, std::function<void(size_t)> set,
                 std::function<std::string()> format);

  // Says more of the field that was declared last.
  void Describe(FieldKind kind, double low = 0, double high = 0) {
    fields_.back().kind = kind;
    fields_.back().low = low;
    fields_.back().high = high;
  }

  std::vector<Field> fields_;
};

}  // namespace winnow
