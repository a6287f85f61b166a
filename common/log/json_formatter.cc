#include "common/log/json_formatter.h"

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/json.h"

namespace winnow {

void JsonFormatter::format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) {
  using Json = nlohmann::ordered_json;
  const auto level = spdlog::level::to_string_view(message.level);
  Json object{{"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(message.time), absl::UTCTimeZone())},
              {"level", std::string(level.data(), level.size())},
              {"role", role_}};
  if (!rank_.empty()) object["rank"] = rank_;
  object["message"] = std::string(message.payload.data(), message.payload.size());
  const std::string text = object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  line.append(text.data(), text.data() + text.size());
}

}  // namespace winnow
