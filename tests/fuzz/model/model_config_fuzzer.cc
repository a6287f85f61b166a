#include <cmath>
#include <string_view>

#include "common/base/check.h"
#include "common/model/model_config.h"
#include "common/model/rope.h"

// Input: config.json, then optionally a zero byte and generation_config.json. A config that parses has usable shapes
// and RoPE.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t split = text.find('\0');
  const std::string_view generation = split == std::string_view::npos ? std::string_view() : text.substr(split + 1);
  const auto config = winnow::ParseModelConfig(text.substr(0, split), generation, "fuzz");
  if (!config.ok()) {
    WINNOW_CHECK(!config.status().message().empty());
    return 0;
  }
  WINNOW_CHECK(config->num_query_heads % config->num_kv_heads == 0 && config->head_dim % 2 == 0);
  WINNOW_CHECK(config->hidden_size > 0 && config->qkv_features() > 0 && config->max_context_tokens > 0);
  const winnow::RopeTable rope = winnow::ComputeRope(config->rope, config->head_dim);
  for (const float frequency : rope.inv_freq) WINNOW_CHECK(std::isfinite(frequency) && frequency >= 0);
  WINNOW_CHECK(std::isfinite(rope.attention_factor));
  return 0;
}
