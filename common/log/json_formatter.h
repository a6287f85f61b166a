#pragma once
#include <memory>
#include <string>

#include "spdlog/formatter.h"

namespace winnow {

// One JSON object per message: {"time":"2026-01-31T12:00:00.123Z","level":"info","role":"router","rank":"router-0",
// "message":"..."}. What is not UTF-8 becomes U+FFFD.
class JsonFormatter final : public spdlog::formatter {
 public:
  JsonFormatter(std::string role, std::string rank) : role_(std::move(role)), rank_(std::move(rank)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override;
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(role_, rank_); }

 private:
  const std::string role_, rank_;
};

}  // namespace winnow
