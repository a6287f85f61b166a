#include "common/rpc/kv_shape.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace winnow {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 48, .num_query_heads = 40, .num_kv_heads = 8, .head_dim = 128, .dtype = Dtype::kBf16};

v1::KvShape Described(const KvLayout& layout) {
  v1::KvShape shape;
  DescribeKvLayout(layout, &shape);
  return shape;
}

TEST(KvShapeTest, ALayoutComesBackAsItWasDescribed) {
  KvLayout latent = kLayout;
  latent.num_kv_heads = 1;
  latent.row = {.value_is_key = true, .index_dim = 64};
  latent.num_index_heads = 4;
  for (KvLayout layout : {kLayout, latent}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kI8}) {
      if (layout.row.value_is_key && dtype == Dtype::kI8) continue;
      layout.dtype = dtype;
      const absl::StatusOr<KvLayout> parsed = ParseKvLayout(Described(layout));
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(parsed->num_layers, layout.num_layers);
      EXPECT_EQ(parsed->num_query_heads, layout.num_query_heads);
      EXPECT_EQ(parsed->num_kv_heads, layout.num_kv_heads);
      EXPECT_EQ(parsed->head_dim, layout.head_dim);
      EXPECT_EQ(parsed->dtype, layout.dtype);
      EXPECT_EQ(parsed->row, layout.row);
      EXPECT_EQ(parsed->num_index_heads, layout.num_index_heads);
    }
  }
}

TEST(KvShapeTest, DescribingLeavesWhatIsNotOfTheLayout) {
  v1::KvShape shape;
  shape.set_attention_scale(0.5f);
  DescribeKvLayout(kLayout, &shape);
  EXPECT_EQ(shape.attention_scale(), 0.5f);
}

TEST(KvShapeTest, AnErrorNamesTheField) {
  const struct {
    const char* error;
    std::function<void(v1::KvShape&)> spoil;
  } kCases[] = {
      {"kv_shape.num_layers is 0", [](v1::KvShape& shape) { shape.clear_num_layers(); }},
      {"kv_shape.num_layers is 4294967295", [](v1::KvShape& shape) { shape.set_num_layers(UINT32_MAX); }},
      {"kv_shape.num_kv_heads is 0", [](v1::KvShape& shape) { shape.clear_num_kv_heads(); }},
      {"kv_shape.num_query_heads is 41", [](v1::KvShape& shape) { shape.set_num_query_heads(41); }},
      {"kv_shape.head_dim is 3", [](v1::KvShape& shape) { shape.set_head_dim(3); }},
      {"kv_shape.kv_dtype is KV_DTYPE_UNSPECIFIED", [](v1::KvShape& shape) { shape.clear_kv_dtype(); }},
      {"kv_shape.kv_dtype is 77", [](v1::KvShape& shape) { shape.set_kv_dtype(static_cast<v1::KvDtype>(77)); }},
      {"kv_shape.kv_dtype is KV_DTYPE_INT8, which rows of latent attention cannot be",
       [](v1::KvShape& shape) {
         shape.set_kv_dtype(v1::KV_DTYPE_INT8);
         shape.set_value_is_key(true);
       }},
      {"kv_shape.index_dim is 7", [](v1::KvShape& shape) { shape.set_index_dim(7); }},
      {"kv_shape.num_index_heads is 0", [](v1::KvShape& shape) { shape.set_index_dim(64); }},
  };
  for (const auto& [error, spoil] : kCases) {
    v1::KvShape shape = Described(kLayout);
    spoil(shape);
    const absl::Status status = ParseKvLayout(shape).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << error;
    EXPECT_EQ(status.message(), error);
  }
}

}  // namespace
}  // namespace winnow
