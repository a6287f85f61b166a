#include "router/membership/fingerprint.h"

namespace winnow {
namespace {

// Keeps the first difference that it sees.
class Comparison {
 public:
  template <typename T>
  Comparison& Field(std::string_view name, const T& expected, const T& actual) {
    if (status_.ok() && !(expected == actual)) {
      status_ = absl::FailedPreconditionError(
          absl::StrCat("fingerprint.", AbslSv(name), " is \"", actual, "\", but the cluster has \"", expected, "\""));
    }
    return *this;
  }
  absl::Status status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace

absl::Status CompareVersions(const v1::Fingerprint& expected, const v1::Fingerprint& actual) {
  return Comparison()
      .Field("wire_version", expected.wire_version(), actual.wire_version())
      .Field("block_tokens", expected.block_tokens(), actual.block_tokens())
      .Field("row_layout", expected.row_layout(), actual.row_layout())
      .Field("selector_version", expected.selector_version(), actual.selector_version())
      .status();
}

absl::Status CompareModelFingerprints(const v1::Fingerprint& expected, const v1::Fingerprint& actual) {
  WINNOW_RETURN_IF_ERROR(CompareVersions(expected, actual));
  const v1::KvShape& e = expected.kv_shape();
  const v1::KvShape& a = actual.kv_shape();
  Comparison comparison;
  comparison.Field("model_digest", expected.model_digest(), actual.model_digest())
      .Field("tokenizer_digest", expected.tokenizer_digest(), actual.tokenizer_digest())
      .Field("kv_shape.num_layers", e.num_layers(), a.num_layers())
      .Field("kv_shape.num_query_heads", e.num_query_heads(), a.num_query_heads())
      .Field("kv_shape.num_kv_heads", e.num_kv_heads(), a.num_kv_heads())
      .Field("kv_shape.head_dim", e.head_dim(), a.head_dim())
      .Field("kv_shape.value_is_key", e.value_is_key(), a.value_is_key())
      .Field("kv_shape.index_dim", e.index_dim(), a.index_dim())
      .Field("kv_shape.num_index_heads", e.num_index_heads(), a.num_index_heads())
      .Field("kv_shape.kv_dtype", v1::KvDtype_Name(e.kv_dtype()), v1::KvDtype_Name(a.kv_dtype()))
      .Field("kv_shape.rope_attention_factor", e.rope_attention_factor(), a.rope_attention_factor())
      .Field("kv_shape.attention_scale", e.attention_scale(), a.attention_scale())
      .Field("kv_shape.attention_softcap", e.attention_softcap(), a.attention_softcap())
      .Field("kv_shape.rope_inv_freq.size", e.rope_inv_freq_size(), a.rope_inv_freq_size());
  for (int i = 0; i < e.rope_inv_freq_size() && comparison.status().ok(); ++i) {
    comparison.Field(StdSv(absl::StrCat("kv_shape.rope_inv_freq[", i, "]")), e.rope_inv_freq(i), a.rope_inv_freq(i));
  }
  return comparison.status();
}

}  // namespace winnow
