#include "router/openai/json/ordered_json.h"

#include <string>
#include <unordered_map>
#include <vector>

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;
using Member = std::pair<std::string, Json>;

// "[json.exception.parse_error.101] parse error at ...: reason" without the brackets.
std::string Explain(const char* what) {
  const std::string_view text = what;
  const size_t end = text.find("] ");
  return std::string(end == text.npos ? text : text.substr(end + 2));
}

Json MakeObject(std::vector<Member> members) {
  std::unordered_map<std::string_view, size_t> last;
  for (size_t i = 0; i < members.size(); ++i) last[members[i].first] = i;
  Json object = Json::object();
  auto& out = object.get_ref<Json::object_t&>();
  out.reserve(last.size());  // growing would copy what is in it
  std::vector<bool> written(members.size());
  for (const Member& member : members) {
    const size_t i = last.at(member.first);
    if (written[i]) continue;
    written[i] = true;
    out.emplace_back(member.first, std::move(members[i].second));
  }
  return object;
}

// The parser's events as a document. A container is kept apart while it is open and moved into its parent at its end.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json Take() { return std::move(result_); }
  const std::string& error() const { return error_; }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return Open(true); }
  bool start_array(size_t) override { return Open(false); }
  bool key(string_t& name) override {
    open_.back().members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool end_object() override {
    Json object = MakeObject(std::move(open_.back().members));
    open_.pop_back();
    return Put(std::move(object));
  }
  bool end_array() override {
    Json array = std::move(open_.back().items);
    open_.pop_back();
    return Put(std::move(array));
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    error_ = Explain(error.what());
    return false;
  }

 private:
  struct Container {
    bool is_object = false;
    std::vector<Member> members;
    Json::array_t items;
  };

  bool Open(bool is_object) {
    open_.push_back({.is_object = is_object, .members = {}, .items = {}});
    return true;
  }

  bool Put(Json value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().members.back().second = std::move(value);
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Container> open_;
  Json result_;
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ParseOrderedJson(std::string_view text) {
  Builder builder;
  if (!Json::sax_parse(text, &builder)) return absl::InvalidArgumentError(builder.error());
  return builder.Take();
}

}  // namespace winnow
