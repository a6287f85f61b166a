#include "cache_rank/select/host/served_shape.h"

#include <optional>
#include <string>

#include "transport/wire/wire.h"

namespace winnow {
namespace {

template <typename T>
absl::Status Compare(std::string_view field, const T& ours, const T& theirs) {
  if (ours == theirs) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("fingerprint.", AbslSv(field), " is ", theirs, " at the caller and ", ours, " at the cache rank"));
}

std::optional<Dtype> DtypeOf(v1::KvDtype dtype) {
  if (dtype == v1::KV_DTYPE_F32) return Dtype::kF32;
  if (dtype == v1::KV_DTYPE_BF16) return Dtype::kBf16;
  if (dtype == v1::KV_DTYPE_INT8) return Dtype::kI8;
  return std::nullopt;
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
  auto bad = [](std::string_view field, auto value) {
    return absl::InvalidArgumentError(absl::StrCat("kv_shape.", AbslSv(field), " is ", value));
  };
  if (shape.num_layers() < 1 || shape.num_layers() > 4096) return bad("num_layers", shape.num_layers());
  if (shape.num_kv_heads() < 1 || shape.num_kv_heads() > 4096) return bad("num_kv_heads", shape.num_kv_heads());
  if (shape.num_query_heads() < 1 || shape.num_query_heads() > 65536 ||
      shape.num_query_heads() % shape.num_kv_heads() != 0) {
    return bad("num_query_heads", shape.num_query_heads());
  }
  if (shape.head_dim() < 2 || shape.head_dim() > 1024 || shape.head_dim() % 2 != 0)
    return bad("head_dim", shape.head_dim());
  const std::optional<Dtype> dtype = DtypeOf(shape.kv_dtype());
  if (!dtype.has_value()) return bad("kv_dtype", v1::KvDtype_Name(shape.kv_dtype()));
  if (dtype == Dtype::kI8 && shape.value_is_key()) {
    return absl::InvalidArgumentError("kv_shape.kv_dtype is KV_DTYPE_INT8, which rows of latent attention cannot be");
  }
  if (shape.rope_inv_freq_size() != static_cast<int>(shape.head_dim() / 2)) {
    return bad("rope_inv_freq's length", shape.rope_inv_freq_size());
  }
  if (shape.index_dim() > 1024 || shape.index_dim() % 2 != 0) return bad("index_dim", shape.index_dim());
  if (shape.num_index_heads() > 4096 || (shape.num_index_heads() > 0) != (shape.index_dim() > 0)) {
    return bad("num_index_heads", shape.num_index_heads());
  }
  if (!(shape.attention_scale() > 0)) return bad("attention_scale", shape.attention_scale());
  ServedShape served;
  served.proto = shape;
  served.layout = {.num_layers = static_cast<int>(shape.num_layers()),
                   .num_query_heads = static_cast<int>(shape.num_query_heads()),
                   .num_kv_heads = static_cast<int>(shape.num_kv_heads()),
                   .head_dim = static_cast<int>(shape.head_dim()),
                   .dtype = *dtype,
                   .row = {.value_is_key = shape.value_is_key(), .index_dim = static_cast<int>(shape.index_dim())},
                   .num_index_heads = static_cast<int>(shape.num_index_heads())};
  served.model = {.group_size = served.layout.group_size(),
                  .head_dim = served.layout.head_dim,
                  .dtype = served.layout.dtype,
                  .row = served.layout.row,
                  .num_index_heads = served.layout.num_index_heads,
                  .attention_scale = shape.attention_scale(),
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
