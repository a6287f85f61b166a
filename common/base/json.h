#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// nlohmann's JSON, in place of its own header: what is long of it is compiled once, in json.cc, and not in every file
// that reads or writes JSON.
#define WINNOW_JSON_COMPILED_ONCE(prefix, Json)                                         \
  prefix template Json::basic_json(const Json&);                                        \
  prefix template Json::basic_json(Json::initializer_list_t, bool, Json::value_t);      \
  prefix template std::string Json::dump(int, char, bool, Json::error_handler_t) const; \
  prefix template void Json::json_value::destroy(Json::value_t);                        \
  prefix template class nlohmann::detail::serializer<Json>;

WINNOW_JSON_COMPILED_ONCE(extern, nlohmann::json)
WINNOW_JSON_COMPILED_ONCE(extern, nlohmann::ordered_json)

namespace winnow {

// The value of a text; is_discarded() where it is not JSON. Nothing is thrown. The text's nesting is not bounded: for
// what this project's processes and tools write, not for what clients send.
nlohmann::json ParseJson(std::string_view text);

}  // namespace winnow
