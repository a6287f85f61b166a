#include "common/json_schema/string_format.h"

#include <array>
#include <utility>

namespace winnow {
namespace {

#define WINNOW_YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define WINNOW_LEAP_YEAR "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define WINNOW_DATE                                                                                          \
  "(" WINNOW_YEAR                                                                                            \
  "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))" \
  "|" WINNOW_LEAP_YEAR "-02-29)"
#define WINNOW_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define WINNOW_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define WINNOW_HOST WINNOW_LABEL "(\\." WINNOW_LABEL ")*"
#define WINNOW_OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define WINNOW_GROUP "[0-9A-Fa-f]{1,4}"
#define WINNOW_URI_PART "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kFormats = {{
    {"date", WINNOW_DATE},
    {"time", WINNOW_TIME},
    {"date-time", WINNOW_DATE "T" WINNOW_TIME},
    {"duration",
     "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?"
     "|[0-9]+S))?|"
     "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))"},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"email", "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@" WINNOW_LABEL "(\\." WINNOW_LABEL ")*\\.[A-Za-z]{2,24}"},
    {"hostname", WINNOW_HOST},
    {"ipv4", WINNOW_OCTET "(\\." WINNOW_OCTET "){3}"},
    {"ipv6", "(" WINNOW_GROUP ":){7}" WINNOW_GROUP "|::(" WINNOW_GROUP "(:" WINNOW_GROUP "){0,6})?|" WINNOW_GROUP
             "::(" WINNOW_GROUP "(:" WINNOW_GROUP "){0,4})?"},
    {"uri", "https?://" WINNOW_HOST "(:[0-9]{1,5})?(/" WINNOW_URI_PART "*)*(\\?(" WINNOW_URI_PART
            "|[/?])*)?(#(" WINNOW_URI_PART "|[/?])*)?"},
    {"uri-reference", "(/" WINNOW_URI_PART "*)+(\\?(" WINNOW_URI_PART "|[/?])*)?"},
}};

}  // namespace

std::string_view FormatRegex(std::string_view format) {
  for (const auto& [name, regex] : kFormats) {
    if (name == format) return regex;
  }
  return "";
}

std::vector<std::string> KnownFormats() {
  std::vector<std::string> names;
  for (const auto& [name, regex] : kFormats) names.emplace_back(name);
  return names;
}

}  // namespace winnow
