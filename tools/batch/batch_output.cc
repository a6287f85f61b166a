#include "tools/batch/batch_output.h"

#include <filesystem>

#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

absl::Status CannotWrite(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

bool IsAnswer(const Json& line) {
  return line.is_object() && line.contains("custom_id") && line["custom_id"].is_string() && line.contains("response");
}

bool IsGood(const Json& answer) {
  const Json& response = answer["response"];
  return response.is_object() && response.contains("status_code") && response["status_code"] == 200;
}

// The server's own name for what it answered.
Json IdOf(const Json& body) {
  return body.is_object() && body.contains("id") ? body["id"] : Json(nullptr);
}

}  // namespace

BatchAnswer BatchAnswer::Answered(int status, std::string_view body) {
  Json parsed = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) parsed = body;
  return {.status = status, .body = std::move(parsed)};
}

absl::StatusOr<std::unique_ptr<BatchOutput>> BatchOutput::Open(const std::string& path) {
  std::unique_ptr<BatchOutput> output(new BatchOutput(path));
  std::ifstream before(path, std::ios::binary);
  if (before) {
    const std::string next_path = path + ".partial";
    std::ofstream next(next_path, std::ios::binary | std::ios::trunc);
    bool all_kept = true;
    std::string text;
    for (size_t number = 1; std::getline(before, text); ++number) {
      const bool is_whole = !before.eof();  // a line feed ends it
      const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!IsAnswer(line) && is_whole) {
        std::filesystem::remove(next_path);
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", number, ": no answer of a batch; name another file for the answers"));
      }
      const bool is_kept = is_whole && IsGood(line);
      all_kept = all_kept && is_kept;
      if (!is_kept) continue;
      output->answered_.insert(line["custom_id"].get<std::string>());
      next << text << '\n';
    }
    next.close();
    std::error_code error;
    if (!next) return CannotWrite(next_path);
    if (all_kept) {
      std::filesystem::remove(next_path, error);
    } else {
      std::filesystem::rename(next_path, path, error);
      if (error) return CannotWrite(path);
    }
  }
  output->file_.open(path, std::ios::binary | std::ios::app);
  if (!output->file_) return CannotWrite(path);
  return output;
}

absl::Status BatchOutput::Write(const std::string& custom_id, const BatchAnswer& answer) {
  Json line = {{"id", "batch_req_" + custom_id}, {"custom_id", custom_id}, {"response", nullptr}, {"error", nullptr}};
  if (answer.status == 0) {
    line["error"] = {{"code", "no_answer"}, {"message", answer.error}};
  } else {
    line["response"] = {{"status_code", answer.status}, {"request_id", IdOf(answer.body)}, {"body", answer.body}};
  }
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::lock_guard lock(mutex_);
  file_ << text << std::flush;
  return file_ ? absl::OkStatus() : CannotWrite(path_);
}

}  // namespace winnow
