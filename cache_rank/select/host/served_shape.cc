#include "cache_rank/select/host/served_shape.h"

#include <string>

#include "common/rpc/kv_shape.h"
#include "transport/wire/wire.h"

namespace winnow {
namespace {

template <typename T>
absl::Status Compare(std::string_view field, const T& ours, const T& theirs) {
  if (ours == theirs) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("fingerprint.", AbslSv(field), " is ", theirs, " at the caller and ", ours, " at the cache rank"));
}

absl::Status CompareShapes(const v1::KvShape& ours, const v1::KvShape& theirs) {
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.num_layers", ours.num_layers(), theirs.num_layers()));
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.num_query_heads", ours.num_query_heads(), theirs.num_query_heads()));
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.num_kv_heads", ours.num_kv_heads(), theirs.num_kv_heads()));
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.head_dim", ours.head_dim(), theirs.head_dim()));
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.value_is_key", ours.value_is_key(), theirs.value_is_key()));
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.index_dim", ours.index_dim(), theirs.index_dim()));
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.num_index_heads", ours.num_index_heads(), theirs.num_index_heads()));
  WINNOW_RETURN_IF_ERROR(
      Compare("kv_shape.kv_dtype", v1::KvDtype_Name(ours.kv_dtype()), v1::KvDtype_Name(theirs.kv_dtype())));
  WINNOW_RETURN_IF_ERROR(
      Compare("kv_shape.rope_attention_factor", ours.rope_attention_factor(), theirs.rope_attention_factor()));
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.attention_scale", ours.attention_scale(), theirs.attention_scale()));
  WINNOW_RETURN_IF_ERROR(Compare("kv_shape.attention_softcap", ours.attention_softcap(), theirs.attention_softcap()));
  WINNOW_RETURN_IF_ERROR(
      Compare("kv_shape.rope_inv_freq's length", ours.rope_inv_freq_size(), theirs.rope_inv_freq_size()));
  for (int i = 0; i < ours.rope_inv_freq_size(); ++i) {
    WINNOW_RETURN_IF_ERROR(
        Compare(absl::StrCat("kv_shape.rope_inv_freq[", i, "]"), ours.rope_inv_freq(i), theirs.rope_inv_freq(i)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ServedShape> ParseKvShape(const v1::KvShape& shape) {
  WINNOW_ASSIGN_OR_RETURN(const KvLayout layout, ParseKvLayout(shape));
  if (shape.rope_inv_freq_size() != layout.head_dim / 2) {
    return absl::InvalidArgumentError(absl::StrCat("kv_shape.rope_inv_freq's length is ", shape.rope_inv_freq_size()));
  }
  if (!(shape.attention_scale() > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("kv_shape.attention_scale is ", shape.attention_scale()));
  }
  if (!(shape.attention_softcap() >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("kv_shape.attention_softcap is ", shape.attention_softcap()));
  }
  ServedShape served;
  served.proto = shape;
  served.layout = layout;
  served.model = {.group_size = served.layout.group_size(),
                  .head_dim = served.layout.head_dim,
                  .dtype = served.layout.dtype,
                  .row = served.layout.row,
                  .num_index_heads = served.layout.num_index_heads,
                  .attention_scale = shape.attention_scale(),
                  .attention_softcap = shape.attention_softcap(),
                  .rope = {.inv_freq = {shape.rope_inv_freq().begin(), shape.rope_inv_freq().end()},
                           .attention_factor = shape.rope_attention_factor()}};
  return served;
}

absl::Status CheckFingerprint(const v1::Fingerprint& theirs, const ServedShape* served, std::string_view model_digest) {
  WINNOW_RETURN_IF_ERROR(Compare<uint32_t>("wire_version", wire::kVersion, theirs.wire_version()));
  WINNOW_RETURN_IF_ERROR(Compare<uint32_t>("block_tokens", kBlockTokens, theirs.block_tokens()));
  WINNOW_RETURN_IF_ERROR(Compare<uint32_t>("row_layout", kRowLayout, theirs.row_layout()));
  WINNOW_RETURN_IF_ERROR(Compare<uint32_t>("selector_version", kSelectorVersion, theirs.selector_version()));
  if (!model_digest.empty()) {
    WINNOW_RETURN_IF_ERROR(Compare<std::string>("model_digest", std::string(model_digest), theirs.model_digest()));
  }
  return served == nullptr ? absl::OkStatus() : CompareShapes(served->proto, theirs.kv_shape());
}

v1::Fingerprint CacheRankFingerprint(const ServedShape* served, std::string_view model_digest,
                                     const KernelTable& kernels) {
  v1::Fingerprint fingerprint;
  fingerprint.set_model_digest(std::string(model_digest));
  if (served != nullptr) *fingerprint.mutable_kv_shape() = served->proto;
  fingerprint.set_block_tokens(kBlockTokens);
  fingerprint.set_row_layout(kRowLayout);
  fingerprint.set_selector_version(kSelectorVersion);
  fingerprint.set_wire_version(wire::kVersion);
  fingerprint.set_numerics(std::string(kernels.name));
  return fingerprint;
}

}  // namespace winnow
