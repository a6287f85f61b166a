#include "common/rpc/kv_shape.h"

#include <optional>
#include <string_view>

#include "common/base/check.h"

namespace winnow {
namespace {

std::optional<Dtype> DtypeOf(v1::KvDtype dtype) {
  if (dtype == v1::KV_DTYPE_F32) return Dtype::kF32;
  if (dtype == v1::KV_DTYPE_BF16) return Dtype::kBf16;
  if (dtype == v1::KV_DTYPE_INT8) return Dtype::kI8;
  return std::nullopt;
}

v1::KvDtype NameOf(Dtype dtype) {
  if (dtype == Dtype::kF32) return v1::KV_DTYPE_F32;
  if (dtype == Dtype::kBf16) return v1::KV_DTYPE_BF16;
  WINNOW_CHECK(dtype == Dtype::kI8);
  return v1::KV_DTYPE_INT8;
}

}  // namespace

absl::StatusOr<KvLayout> ParseKvLayout(const v1::KvShape& shape) {
  const auto bad = [](std::string_view field, auto value) {
    return absl::InvalidArgumentError(absl::StrCat("kv_shape.", AbslSv(field), " is ", value));
  };
  if (shape.num_layers() < 1 || shape.num_layers() > 4096) return bad("num_layers", shape.num_layers());
  if (shape.num_kv_heads() < 1 || shape.num_kv_heads() > 4096) return bad("num_kv_heads", shape.num_kv_heads());
  if (shape.num_query_heads() < 1 || shape.num_query_heads() > 65536 ||
      shape.num_query_heads() % shape.num_kv_heads() != 0) {
    return bad("num_query_heads", shape.num_query_heads());
  }
  if (shape.head_dim() < 2 || shape.head_dim() > 1024 || shape.head_dim() % 2 != 0) {
    return bad("head_dim", shape.head_dim());
  }
  const std::optional<Dtype> dtype = DtypeOf(shape.kv_dtype());
  if (!dtype.has_value() && v1::KvDtype_IsValid(shape.kv_dtype())) {
    return bad("kv_dtype", v1::KvDtype_Name(shape.kv_dtype()));
  }
  if (!dtype.has_value()) return bad("kv_dtype", static_cast<int>(shape.kv_dtype()));
  if (dtype == Dtype::kI8 && shape.value_is_key()) {
    return absl::InvalidArgumentError("kv_shape.kv_dtype is KV_DTYPE_INT8, which rows of latent attention cannot be");
  }
  if (shape.index_dim() > 1024 || shape.index_dim() % 2 != 0) return bad("index_dim", shape.index_dim());
  if (shape.num_index_heads() > 4096 || (shape.num_index_heads() > 0) != (shape.index_dim() > 0)) {
    return bad("num_index_heads", shape.num_index_heads());
  }
  return KvLayout{.num_layers = static_cast<int>(shape.num_layers()),
                  .num_query_heads = static_cast<int>(shape.num_query_heads()),
                  .num_kv_heads = static_cast<int>(shape.num_kv_heads()),
                  .head_dim = static_cast<int>(shape.head_dim()),
                  .dtype = *dtype,
                  .row = {.value_is_key = shape.value_is_key(), .index_dim = static_cast<int>(shape.index_dim())},
                  .num_index_heads = static_cast<int>(shape.num_index_heads())};
}

void DescribeKvLayout(const KvLayout& layout, v1::KvShape* shape) {
  shape->set_num_layers(layout.num_layers);
  shape->set_num_query_heads(layout.num_query_heads);
  shape->set_num_kv_heads(layout.num_kv_heads);
  shape->set_head_dim(layout.head_dim);
  shape->set_kv_dtype(NameOf(layout.dtype));
  shape->set_value_is_key(layout.row.value_is_key);
  shape->set_index_dim(layout.row.index_dim);
  shape->set_num_index_heads(layout.num_index_heads);
}

}  // namespace winnow
