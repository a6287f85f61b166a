#include "tools/batch/batch_run.h"

#include <algorithm>

#include "common/base/json.h"

namespace winnow {
namespace {

constexpr size_t kShownFailures = 5;
constexpr std::chrono::seconds kLongestPause{30};

bool MayPass(const HttpReply& reply) {
  return reply.status == 0 || reply.status == 429 || reply.status == 503;
}

uint64_t CountIn(const nlohmann::ordered_json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
}

// The server's words for an error.
std::string ReasonOf(const BatchAnswer& answer) {
  if (answer.status == 0) return answer.error;
  const nlohmann::ordered_json::json_pointer message("/error/message");
  if (answer.body.is_object() && answer.body.contains(message) && answer.body[message].is_string()) {
    return answer.body[message];
  }
  const std::string text = answer.body.is_string()
                               ? answer.body.get<std::string>()
                               : answer.body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return text.substr(0, 200);
}

}  // namespace

BatchRun::BatchRun(const BatchRunOptions& options, BatchInput* input, BatchOutput* output)
    : options_(options), input_(input), output_(output), client_(options.server) {
  counts_.requests = input_->size();
  for (size_t i = 0; i < input_->size(); ++i) counts_.before += output_->IsAnswered(input_->custom_id(i));
  threads_left_ = static_cast<uint32_t>(std::min<size_t>(options_.concurrency, counts_.left()));
  for (uint32_t left = threads_left_; left > 0; --left) threads_.emplace_back([this] { Work(); });
}

BatchRun::~BatchRun() {
  Stop();
  for (std::thread& thread : threads_) thread.join();
}

void BatchRun::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

bool BatchRun::WaitFor(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return threads_left_ == 0; });
}

BatchCounts BatchRun::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

size_t BatchRun::under_way() const {
  const std::lock_guard lock(mutex_);
  return under_way_;
}

absl::Status BatchRun::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void BatchRun::Work() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    while (next_ < input_->size() && output_->IsAnswered(input_->custom_id(next_))) ++next_;
    if (next_ == input_->size()) break;
    const size_t index = next_++;
    ++under_way_;
    lock.unlock();
    absl::StatusOr<BatchRequest> request = input_->Read(index);
    const std::optional<BatchAnswer> answer =
        request.ok() ? Ask(*request) : BatchAnswer::Missing(std::string(request.status().message()));
    const absl::Status written = answer ? output_->Write(input_->custom_id(index), *answer) : absl::OkStatus();
    lock.lock();
    --under_way_;
    if (!written.ok()) {
      status_ = written;
      stopped_ = true;
    } else if (answer) {
      Note(index, *answer);
    }
  }
  --threads_left_;
  changed_.notify_all();
}

std::optional<BatchAnswer> BatchRun::Ask(const BatchRequest& request) {
  for (uint32_t attempt = 0;; ++attempt) {
    const HttpReply reply = client_.Send("POST", request.url, request.body);
    if (!MayPass(reply) || attempt == options_.retries) {
      return reply.status == 0 ? BatchAnswer::Missing(reply.body) : BatchAnswer::Answered(reply.status, reply.body);
    }
    const std::chrono::seconds growing(int64_t{1} << std::min(attempt, 5u));
    if (!Pause(std::max(std::chrono::seconds(reply.retry_after_s), std::min(growing, kLongestPause)))) return {};
  }
}

bool BatchRun::Pause(std::chrono::seconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stopped_; });
}

void BatchRun::Note(size_t index, const BatchAnswer& answer) {
  if (answer.ok()) {
    ++counts_.answered;
    const nlohmann::ordered_json& body = answer.body;
    if (body.is_object() && body.contains("usage") && body["usage"].is_object()) {
      counts_.prompt_tokens += CountIn(body["usage"], "prompt_tokens");
      counts_.completion_tokens += CountIn(body["usage"], "completion_tokens");
    }
    return;
  }
  ++counts_.failed;
  ++counts_.failures[answer.status == 0 ? "no answer" : std::to_string(answer.status)];
  if (counts_.first_failures.size() < kShownFailures) {
    counts_.first_failures.push_back(absl::StrCat("line ", input_->line_number(index), " (", input_->custom_id(index),
                                                  "): ", answer.status == 0 ? "" : absl::StrCat(answer.status, ": "),
                                                  ReasonOf(answer)));
  }
}

}  // namespace winnow
