#include "common/model/latent_config.h"

#include "common/base/status.h"

namespace winnow {
namespace {

constexpr int64_t kMaxRank = 1 << 16;
constexpr int64_t kMaxKeyDim = 1024;  // latent and turning part
constexpr int64_t kMaxIndexHeads = 1024;
constexpr int64_t kMaxTopK = int64_t{1} << 24;

absl::StatusOr<int> Required(const JsonFields& config, const char* field, int64_t high) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> value, config.Int(field, 1, high));
  if (!value.has_value()) return config.Error(field, "is missing");
  return static_cast<int>(*value);
}

absl::StatusOr<int> RequiredEven(const JsonFields& config, const char* field, int64_t high) {
  WINNOW_ASSIGN_OR_RETURN(const int value, Required(config, field, high));
  if (value % 2 != 0) return config.Error(field, absl::StrCat("is ", value, "; it must be even"));
  return value;
}

// Where a field tells the kind of each layer, all must be of the one kind that is built.
absl::Status CheckEveryLayer(const JsonFields& config, const char* field, std::string_view kind, int num_layers) {
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json* layers, config.Array(field));
  if (layers == nullptr) return absl::OkStatus();
  if (layers->size() != static_cast<size_t>(num_layers)) {
    return config.Error(field, absl::StrCat("has ", layers->size(), " entries for ", num_layers, " layers"));
  }
  for (const nlohmann::json& layer : *layers) {
    if (layer != kind) {
      return config.Error(field,
                          absl::StrCat("holds ", layer.dump().substr(0, 60), "; only ", AbslSv(kind), " is supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<IndexerConfig> ParseIndexer(const JsonFields& config, const LatentConfig& latent, int num_layers) {
  if (latent.query_rank == 0) {
    return config.Error("q_lora_rank", "is missing, and the indexer's queries are made of that latent");
  }
  WINNOW_RETURN_IF_ERROR(CheckEveryLayer(config, "layer_types", "deepseek_sparse_attention", num_layers));
  WINNOW_RETURN_IF_ERROR(CheckEveryLayer(config, "indexer_types", "full", num_layers));
  IndexerConfig indexer;
  WINNOW_ASSIGN_OR_RETURN(indexer.num_heads, Required(config, "index_n_heads", kMaxIndexHeads));
  WINNOW_ASSIGN_OR_RETURN(indexer.head_dim, RequiredEven(config, "index_head_dim", kMaxKeyDim));
  WINNOW_ASSIGN_OR_RETURN(indexer.top_k, Required(config, "index_topk", kMaxTopK));
  if (indexer.head_dim < latent.shape.rope_dim || indexer.head_dim > latent.shape.key_dim()) {
    return config.Error("index_head_dim",
                        absl::StrCat("is ", indexer.head_dim, "; it must be at least qk_rope_head_dim ",
                                     latent.shape.rope_dim, " and no more than a key's ", latent.shape.key_dim()));
  }
  return indexer;
}

}  // namespace

absl::StatusOr<LatentConfig> ParseLatentConfig(const JsonFields& config, bool has_indexer, bool index_interleaved,
                                               int num_layers) {
  LatentConfig latent;
  WINNOW_ASSIGN_OR_RETURN(latent.shape.rank, RequiredEven(config, "kv_lora_rank", kMaxKeyDim));
  WINNOW_ASSIGN_OR_RETURN(latent.shape.rope_dim, RequiredEven(config, "qk_rope_head_dim", kMaxKeyDim));
  if (latent.shape.key_dim() > kMaxKeyDim) {
    return config.Error("kv_lora_rank", absl::StrCat("and qk_rope_head_dim are ", latent.shape.key_dim(),
                                                     " together; at most ", kMaxKeyDim, " is supported"));
  }
  WINNOW_ASSIGN_OR_RETURN(latent.nope_dim, Required(config, "qk_nope_head_dim", kMaxKeyDim));
  WINNOW_ASSIGN_OR_RETURN(latent.value_dim, Required(config, "v_head_dim", kMaxKeyDim));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<int64_t> query_rank, config.Int("q_lora_rank", 1, kMaxRank));
  latent.query_rank = static_cast<int>(query_rank.value_or(0));
  WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> interleaved, config.Bool("rope_interleave"));
  latent.interleaved = interleaved.value_or(true);
  if (has_indexer) {
    WINNOW_ASSIGN_OR_RETURN(latent.indexer, ParseIndexer(config, latent, num_layers));
    WINNOW_ASSIGN_OR_RETURN(const std::optional<bool> stored, config.Bool("indexer_rope_interleave"));
    latent.indexer.interleaved = stored.value_or(index_interleaved);
    return latent;
  }
  WINNOW_RETURN_IF_ERROR(CheckEveryLayer(config, "layer_types", "full_attention", num_layers));
  return latent;
}

}  // namespace winnow
