#include "common/json_schema/schema_grammar.h"

#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/grammar/regex_parser.h"
#include "common/json_schema/json_grammar.h"
#include "common/json_schema/number_range.h"
#include "common/json_schema/one_of.h"
#include "common/json_schema/schema_document.h"
#include "common/json_schema/schema_keywords.h"
#include "common/json_schema/string_format.h"

namespace winnow {
namespace {

using ExprId = Grammar::ExprId;
using Expr = absl::StatusOr<ExprId>;

constexpr int kMaxDepth = 100;
constexpr double kMaxBound = 1e18;

class SchemaWriter {
 public:
  SchemaWriter(const SchemaJson& schema, const SchemaOptions& options, Grammar& grammar)
      : document_(schema), options_(options), grammar_(grammar), json_(grammar, options.compact) {}

  Expr Write() {
    const ExprId root = grammar_.Call(RuleOf(document_.root(), "#", "schema"));
    // Bodies of rules one after another, so that references that chain do not recurse.
    while (!pending_.empty()) {
      const Pending next = pending_.front();
      pending_.pop_front();
      WINNOW_ASSIGN_OR_RETURN(const ExprId body, Add(*next.schema, next.path, 0));
      grammar_.Define(next.rule, body);
      if (grammar_.is_too_large()) return SchemaError(next.path, "the schema is too large");
    }
    return root;
  }

 private:
  struct Pending {
    Grammar::RuleId rule;
    const SchemaJson* schema;
    std::string path;
  };

  Grammar::RuleId RuleOf(const SchemaJson& schema, std::string_view path, std::string name) {
    const auto [entry, is_new] = rules_.try_emplace(&schema, 0);
    if (is_new) {
      entry->second = grammar_.AddRule(std::move(name));
      pending_.push_back({entry->second, &schema, std::string(path)});
    }
    return entry->second;
  }

  ExprId Nothing() { return grammar_.Choice({}); }

  // As a rule of its own: what stands in several places, as each level of a nested schema may, is there once.
  ExprId Shared(std::string name, ExprId expr) { return grammar_.Call(grammar_.AddRule(std::move(name), expr)); }

  // `path` is where the schema stands, for errors.
  Expr Add(const SchemaJson& schema, const std::string& path, int depth) {
    if (depth > kMaxDepth) return SchemaError(path, "schemas are nested too deeply");
    if (grammar_.is_too_large()) return SchemaError(path, "the schema is too large");
    if (schema.is_boolean()) return schema.get<bool>() ? json_.Value() : Nothing();
    WINNOW_RETURN_IF_ERROR(CheckKeywords(schema, path));
    if (FindMember(schema, "allOf") != nullptr) return AddAllOf(schema, path, depth);
    if (FindMember(schema, "$ref") != nullptr) return AddReference(schema, path, depth);
    for (const std::string_view keyword : {"oneOf", "anyOf"}) {
      if (FindMember(schema, keyword) != nullptr) return AddAlternatives(schema, keyword, path, depth);
    }
    if (FindMember(schema, "enum") != nullptr || FindMember(schema, "const") != nullptr) return AddValues(schema, path);
    WINNOW_ASSIGN_OR_RETURN(const unsigned types, TypesOf(schema, path));
    if (types == kAnyType && !HasAssertions(schema, {"type"})) return json_.Value();
    std::vector<ExprId> parts;
    if (types & kObjectType) {
      WINNOW_ASSIGN_OR_RETURN(parts.emplace_back(), AddObject(schema, path, depth));
    }
    if (types & kArrayType) {
      WINNOW_ASSIGN_OR_RETURN(parts.emplace_back(), AddArray(schema, path, depth));
    }
    if (types & kStringType) {
      WINNOW_ASSIGN_OR_RETURN(parts.emplace_back(), AddString(schema, path));
    }
    if (types & kNumberType) {
      WINNOW_ASSIGN_OR_RETURN(parts.emplace_back(), AddNumber(schema, (types & kFractionType) == 0, path));
    }
    if (types & kBooleanType) parts.push_back(json_.Boolean());
    if (types & kNullType) parts.push_back(json_.Null());
    return grammar_.Choice(std::move(parts));
  }

  static bool HasAssertions(const SchemaJson& schema, std::initializer_list<std::string_view> but_for) {
    for (const auto& [name, value] : schema.items()) {
      if (IsAssertion(name) && std::find(but_for.begin(), but_for.end(), name) == but_for.end()) return true;
    }
    return false;
  }

  absl::StatusOr<const SchemaJson*> Without(const SchemaJson& schema, std::string_view keyword,
                                            const std::string& path) {
    SchemaJson rest = schema;
    rest.erase(std::string(keyword));
    return document_.Keep(std::move(rest), path);
  }

  // The schema that a chain of references ends at, where a schema is nothing but a reference.
  absl::StatusOr<const SchemaJson*> Dereferenced(const SchemaJson& schema, const std::string& path) {
    const SchemaJson* target = &schema;
    for (int steps = 0; FindMember(*target, "$ref") != nullptr && !HasAssertions(*target, {"$ref"}); ++steps) {
      if (steps == kMaxDepth) return SchemaError(path, "\"$ref\" leads in a circle");
      WINNOW_RETURN_IF_ERROR(CheckKeywords(*target, path));
      WINNOW_ASSIGN_OR_RETURN(target, document_.Resolve((*target)["$ref"].get<std::string>(), path));
    }
    return target;
  }

  Expr AddAllOf(const SchemaJson& schema, const std::string& path, int depth) {
    WINNOW_ASSIGN_OR_RETURN(const SchemaJson* merged, Without(schema, "allOf", path));
    for (size_t i = 0; i < schema["allOf"].size(); ++i) {
      const std::string part_path = SchemaPath(SchemaPath(path, "allOf"), std::to_string(i));
      WINNOW_ASSIGN_OR_RETURN(const SchemaJson* const part, Dereferenced(schema["allOf"][i], part_path));
      if (part->is_object()) WINNOW_RETURN_IF_ERROR(CheckKeywords(*part, part_path));
      WINNOW_ASSIGN_OR_RETURN(merged, document_.Both(*merged, *part, part_path));
    }
    return Add(*merged, path, depth + 1);
  }

  Expr AddReference(const SchemaJson& schema, const std::string& path, int depth) {
    const std::string ref = schema["$ref"].get<std::string>();
    WINNOW_ASSIGN_OR_RETURN(const SchemaJson* const target, document_.Resolve(ref, path));
    if (!HasAssertions(schema, {"$ref"})) {
      return grammar_.Call(RuleOf(*target, ref, ref.substr(ref.find_last_of("#/") + 1)));
    }
    WINNOW_ASSIGN_OR_RETURN(const SchemaJson* const rest, Without(schema, "$ref", path));
    WINNOW_ASSIGN_OR_RETURN(const SchemaJson* const merged, document_.Both(*rest, *target, path));
    return Add(*merged, path, depth + 1);
  }

  Expr AddAlternatives(const SchemaJson& schema, std::string_view keyword, const std::string& path, int depth) {
    const SchemaJson& alternatives = *FindMember(schema, keyword);
    if (keyword == "oneOf") {
      std::vector<const SchemaJson*> parts;
      for (const SchemaJson& part : alternatives) {
        WINNOW_ASSIGN_OR_RETURN(parts.emplace_back(), Dereferenced(part, path));
      }
      WINNOW_RETURN_IF_ERROR(CheckOneOf(document_, parts, SchemaPath(path, keyword)));
    }
    const bool has_more = HasAssertions(schema, {keyword});
    const SchemaJson* rest = nullptr;
    if (has_more) {
      WINNOW_ASSIGN_OR_RETURN(rest, Without(schema, keyword, path));
    }
    std::vector<ExprId> parts;
    for (size_t i = 0; i < alternatives.size(); ++i) {
      const std::string part_path = SchemaPath(SchemaPath(path, keyword), std::to_string(i));
      const SchemaJson* part = &alternatives[i];
      if (has_more) {
        WINNOW_ASSIGN_OR_RETURN(part, Dereferenced(*part, part_path));
        if (part->is_object()) WINNOW_RETURN_IF_ERROR(CheckKeywords(*part, part_path));
        WINNOW_ASSIGN_OR_RETURN(part, document_.Both(*rest, *part, part_path));
      }
      WINNOW_ASSIGN_OR_RETURN(parts.emplace_back(), Add(*part, part_path, depth + 1));
    }
    return grammar_.Choice(std::move(parts));
  }

  Expr AddValues(const SchemaJson& schema, const std::string& path) {
    if (HasAssertions(schema, {"enum", "const", "type"})) {
      return SchemaError(path, "\"enum\" or \"const\" beside keywords other than \"type\" is not supported");
    }
    unsigned types = kAnyType;
    if (FindMember(schema, "type") != nullptr) {
      WINNOW_ASSIGN_OR_RETURN(types, TypesOf(schema, path));
    }
    const SchemaJson* const constant = FindMember(schema, "const");
    const SchemaJson* const values = FindMember(schema, "enum");
    const SchemaJson all = values != nullptr ? *values : SchemaJson::array({*constant});
    std::vector<ExprId> parts;
    for (const SchemaJson& value : all) {
      if (constant != nullptr && value != *constant) continue;
      if (TypeOf(value) & types) parts.push_back(json_.Constant(value));
    }
    if (parts.empty()) return SchemaError(path, "no value of \"enum\" or \"const\" is allowed");
    return grammar_.Choice(std::move(parts));
  }

  struct Property {
    ExprId member;  // with its key
    bool required;
  };

  Expr AddObject(const SchemaJson& schema, const std::string& path, int depth) {
    const SchemaJson* const properties = FindMember(schema, "properties");
    const SchemaJson* const additional = FindMember(schema, "additionalProperties");
    const std::string additional_path = SchemaPath(path, "additionalProperties");
    const bool closed = additional != nullptr ? *additional == false : options_.closed;
    const auto add_additional = [&]() -> Expr {
      return additional == nullptr ? Expr(json_.Value()) : Add(*additional, additional_path, depth + 1);
    };

    std::set<std::string> required = RequiredOf(schema);
    std::vector<Property> members;
    std::vector<std::string> names;
    const SchemaJson none = SchemaJson::object();
    for (const auto& [name, value] : (properties != nullptr ? properties : &none)->items()) {
      const bool is_required = required.erase(name) > 0;
      names.push_back(name);
      if (value == false && !is_required) continue;
      WINNOW_ASSIGN_OR_RETURN(const ExprId body,
                              Add(value, SchemaPath(SchemaPath(path, "properties"), name), depth + 1));
      members.push_back({Shared(name, json_.Member(json_.Key(name), body)), is_required});
    }
    for (const std::string& name : required) {
      if (closed) return SchemaError(path, absl::StrCat("property \"", name, "\" is required but not allowed"));
      names.push_back(name);
      WINNOW_ASSIGN_OR_RETURN(const ExprId body, add_additional());
      members.push_back({Shared(name, json_.Member(json_.Key(name), body)), true});
    }
    std::optional<ExprId> other;
    if (!closed) {
      WINNOW_ASSIGN_OR_RETURN(const ExprId body, add_additional());
      other = Shared("other", json_.Member(json_.KeyOtherThan(names), body));
    }
    return Members(members, other);
  }

  // Rules from the last property to the first: what may follow when something has been written before, and when nothing
  // has.
  ExprId Members(const std::vector<Property>& members, std::optional<ExprId> other) {
    const auto rule = [&](ExprId body) { return Shared("members", body); };
    const ExprId end = grammar_.Empty();
    ExprId behind = end;             // with commas
    std::optional<ExprId> at_start;  // absent: nothing, and so an empty object
    bool may_be_empty = true;
    if (other.has_value()) {
      behind = rule(grammar_.Repeat(grammar_.Sequence({json_.Comma(), *other}), 0, std::nullopt));
      at_start = grammar_.Sequence({*other, behind});
    }
    for (size_t i = members.size(); i-- > 0;) {
      const auto& [member, required] = members[i];
      const ExprId with = grammar_.Sequence({member, behind});
      const ExprId next = grammar_.Sequence({json_.Comma(), member, behind});
      at_start = required || !at_start.has_value() ? with : grammar_.Choice({with, *at_start});
      behind = required ? next : grammar_.Choice({next, behind});
      if (members.size() > 1) {
        at_start = rule(*at_start);
        behind = behind == end ? end : rule(behind);
      }
      may_be_empty = may_be_empty && !required;
    }
    std::vector<ExprId> objects;
    if (at_start.has_value()) objects.push_back(json_.Object(*at_start));
    if (may_be_empty) objects.push_back(json_.EmptyObject());
    return grammar_.Choice(std::move(objects));
  }

  Expr AddArray(const SchemaJson& schema, const std::string& path, int depth) {
    WINNOW_ASSIGN_OR_RETURN(const std::optional<uint32_t> min_items, CountOf(schema, "minItems", path));
    WINNOW_ASSIGN_OR_RETURN(const std::optional<uint32_t> max, CountOf(schema, "maxItems", path));
    const uint32_t min = min_items.value_or(0);
    const SchemaJson* const items = FindMember(schema, "items");
    const SchemaJson* const prefix = FindMember(schema, "prefixItems");
    std::vector<ExprId> first;
    for (size_t i = 0; prefix != nullptr && i < prefix->size() && i < max.value_or(UINT32_MAX); ++i) {
      const std::string item_path = SchemaPath(SchemaPath(path, "prefixItems"), std::to_string(i));
      WINNOW_ASSIGN_OR_RETURN(first.emplace_back(), Add((*prefix)[i], item_path, depth + 1));
    }
    const auto num_first = static_cast<uint32_t>(first.size());
    std::optional<ExprId> rest;
    if (items == nullptr) {
      rest = json_.Value();
    } else if (*items != false) {
      WINNOW_ASSIGN_OR_RETURN(const ExprId body, Add(*items, SchemaPath(path, "items"), depth + 1));
      rest = Shared("item", body);
    }
    if (max.has_value() && (*max < min || *max <= num_first)) rest.reset();
    const uint32_t most = rest.has_value() ? max.value_or(UINT32_MAX) : num_first;
    if (most < min) return SchemaError(path, "an array of at least \"minItems\" that may not have so many");

    // Behind the first ones.
    ExprId tail = grammar_.Empty();
    if (rest.has_value() && num_first == 0) {
      const ExprId more = grammar_.Repeat(grammar_.Sequence({json_.Comma(), *rest}), min > 0 ? min - 1 : 0,
                                          max.has_value() ? std::optional(*max - 1) : std::nullopt);
      tail = grammar_.Sequence({*rest, more});
    } else if (rest.has_value()) {
      tail = grammar_.Repeat(grammar_.Sequence({json_.Comma(), *rest}), min > num_first ? min - num_first : 0,
                             max.has_value() ? std::optional(*max - num_first) : std::nullopt);
    }
    for (size_t i = num_first; i-- > 0;) {
      std::vector<ExprId> parts = {first[i], tail};
      if (i > 0) parts.insert(parts.begin(), json_.Comma());
      tail = grammar_.Sequence(std::move(parts));
      if (i > 0 && i >= min) tail = grammar_.Optional(tail);
    }
    std::vector<ExprId> arrays;
    if (tail != grammar_.Empty()) arrays.push_back(json_.Array(tail));
    if (min == 0) arrays.push_back(json_.EmptyArray());
    return grammar_.Choice(std::move(arrays));
  }

  Expr AddString(const SchemaJson& schema, const std::string& path) {
    WINNOW_ASSIGN_OR_RETURN(const std::optional<uint32_t> min, CountOf(schema, "minLength", path));
    WINNOW_ASSIGN_OR_RETURN(const std::optional<uint32_t> max, CountOf(schema, "maxLength", path));
    const SchemaJson* const pattern = FindMember(schema, "pattern");
    const SchemaJson* const format = FindMember(schema, "format");
    const bool has_length = min.value_or(0) > 0 || max.has_value();
    if ((pattern != nullptr) + (format != nullptr) + (has_length ? 1 : 0) > 1) {
      return SchemaError(path, "\"pattern\", \"format\" and bounds of the length together are not supported");
    }
    if (max.has_value() && *max < min.value_or(0)) return SchemaError(path, "\"maxLength\" is below \"minLength\"");
    if (has_length) return json_.String(min.value_or(0), max);
    if (pattern == nullptr && format == nullptr) return json_.String();
    std::string regex;
    if (pattern != nullptr) {
      regex = pattern->get<std::string>();
    } else {
      const std::string& name = format->get_ref<const std::string&>();
      regex = FormatRegex(name);
      if (regex.empty())
        return SchemaError(path, absl::StrCat("\"format\" \"", name.substr(0, 64), "\" is not supported"));
    }
    const RegexOptions options{
        .search = pattern != nullptr,
        .character = [this](Grammar&, const std::vector<CodePointRange>& ranges) { return json_.Character(ranges); }};
    const Expr inside = AddRegex(regex, options, grammar_);
    if (!inside.ok()) return SchemaError(path, absl::StrCat("\"pattern\": ", inside.status().message(), ","));
    return grammar_.Sequence({grammar_.Bytes("\""), *inside, grammar_.Bytes("\"")});
  }

  // A bound as a whole number; of an integer one that is not whole is moved inwards, which leaves it included.
  absl::StatusOr<std::optional<int64_t>> BoundOf(const SchemaJson& schema, std::string_view keyword, bool is_integer,
                                                 bool is_low, bool* excluded, const std::string& path) {
    const SchemaJson* const value = FindMember(schema, keyword);
    if (value == nullptr) return std::optional<int64_t>();
    const double bound = value->get<double>();
    if (std::fabs(bound) > kMaxBound)
      return SchemaError(path, absl::StrCat("\"", AbslSv(keyword), "\" beyond 10^18 is not supported"));
    const bool is_whole = std::floor(bound) == bound;
    if (!is_whole && !is_integer) {
      return SchemaError(path,
                         absl::StrCat("\"", AbslSv(keyword), "\" that is not whole, of a number, is not supported"));
    }
    if (!is_whole) *excluded = false;
    if (value->is_number_integer()) return value->get<int64_t>();
    return static_cast<int64_t>(is_low ? std::ceil(bound) : std::floor(bound));
  }

  Expr AddNumber(const SchemaJson& schema, bool is_integer, const std::string& path) {
    NumberBounds bounds;
    WINNOW_ASSIGN_OR_RETURN(bounds.low, BoundOf(schema, "minimum", is_integer, true, &bounds.low_excluded, path));
    WINNOW_ASSIGN_OR_RETURN(bounds.high, BoundOf(schema, "maximum", is_integer, false, &bounds.high_excluded, path));
    bool low_excluded = true, high_excluded = true;
    WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> above,
                            BoundOf(schema, "exclusiveMinimum", is_integer, true, &low_excluded, path));
    WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> below,
                            BoundOf(schema, "exclusiveMaximum", is_integer, false, &high_excluded, path));
    if (above.has_value() && (!bounds.low.has_value() || *above >= *bounds.low)) {
      bounds.low_excluded = *above == bounds.low ? true : low_excluded;
      bounds.low = above;
    }
    if (below.has_value() && (!bounds.high.has_value() || *below <= *bounds.high)) {
      bounds.high_excluded = *below == bounds.high ? true : high_excluded;
      bounds.high = below;
    }
    if (!bounds.low.has_value() && !bounds.high.has_value()) return is_integer ? json_.Integer() : json_.Number();
    if (bounds.low.has_value() && bounds.high.has_value() && *bounds.low > *bounds.high) {
      return SchemaError(path, "no number is within the bounds");
    }
    return is_integer ? AddIntegerRange(bounds, grammar_) : AddNumberRange(bounds, grammar_);
  }

  SchemaDocument document_;
  const SchemaOptions options_;
  Grammar& grammar_;
  JsonGrammar json_;
  std::map<const SchemaJson*, Grammar::RuleId> rules_;
  std::deque<Pending> pending_;
};

}  // namespace

absl::StatusOr<ExprId> AddJsonSchema(const SchemaJson& schema, const SchemaOptions& options, Grammar& grammar) {
  if (!schema.is_object() && !schema.is_boolean()) {
    return absl::InvalidArgumentError("a schema must be an object or a boolean");
  }
  return SchemaWriter(schema, options, grammar).Write();
}

}  // namespace winnow
