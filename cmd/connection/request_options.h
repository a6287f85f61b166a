#pragma once
#include <cstdint>
#include <string>

#include "common/config/fields.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// What a command asks of an answer.
struct RequestOptions {
  uint32_t max_tokens = 0;
  double temperature = -1;
  std::string selection;
  uint32_t budget = 0;

  void Declare(Fields& fields);
  void ApplyTo(v1::GenerateRequest& request) const;
};

}  // namespace winnow
