#include "tests/support/quantized_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "common/base/check.h"

namespace winnow {
namespace {

using nlohmann::json;

void WriteFile(const std::string& path, std::string_view contents) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  WINNOW_CHECK(file.good());
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

void WriteRaw(const RawTensors& tensors, const std::string& path) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  WriteFile(path, SafetensorsBytes(text, data));
}

// A weight of random codes.
class RandomWeight {
 public:
  RandomWeight(const QuantizedForm& form, uint64_t out, uint64_t in, std::mt19937& random)
      : form_(form), out_(out), in_(in), group_(form.group_size == 0 ? in : static_cast<uint64_t>(form.group_size)) {
    groups_ = (in + group_ - 1) / group_;
    const bool fp8 = Is("fp8");
    codes_.resize(out * in);
    for (uint32_t& code : codes_) {
      code = random() % (1u << form.bits);
      // Of fp8 codes those up to 7.5, subnormal ones among them.
      if (fp8) code = (code & 0x80) | (code & 0x7f) % 0x50;
    }
    const uint64_t rows =
        form.block_rows == 0 ? 1 : (out + static_cast<uint64_t>(form.block_rows) - 1) / form.block_rows;
    scales_.resize(rows * groups_);
    zeros_.resize(out * groups_);
    // Values spread over some 1/sqrt(in), so that activations stay near 1.
    const double unit = (fp8 ? 0.5 : 3.0 / (1 << form.bits)) / std::sqrt(static_cast<double>(in));
    for (uint16_t& scale : scales_) {
      int exponent = 0;
      std::frexp(unit, &exponent);
      scale = static_cast<uint16_t>((exponent + 14) << 10 | random() % 1024);
    }
    for (uint32_t& zero : zeros_) {
      const uint32_t middle = 1u << (form.bits - 1);
      zero = form.has_zeros ? middle - 2 + random() % 4 : middle;
    }
    group_of_.resize(in);
    for (uint64_t k = 0; k < in; ++k) group_of_[k] = static_cast<int32_t>(k / group_);
    order_seed_ = static_cast<uint32_t>(in);
    if (form.act_order) std::shuffle(group_of_.begin(), group_of_.end(), std::mt19937(order_seed_));
  }

  std::vector<float> Values() const {
    std::vector<float> values(codes_.size());
    for (uint64_t n = 0; n < out_; ++n) {
      for (uint64_t k = 0; k < in_; ++k) {
        const auto group = static_cast<uint64_t>(group_of_[k]);
        const uint64_t row = form_.block_rows == 0 ? 0 : n / static_cast<uint64_t>(form_.block_rows);
        const uint16_t half = scales_[row * groups_ + group];
        const double scale = std::ldexp(1024 + half % 1024, (half >> 10) - 25);
        values[n * in_ + k] = static_cast<float>(scale * Code(n, k, group));
      }
    }
    return values;
  }

  void Store(const std::string& module, RawTensors& to) const {
    if (Is("gptq")) {
      to[module + ".qweight"] = {"I32", {in_ / PerWord(), out_}, Words([&](uint64_t word, uint64_t i) {
                                   return codes_[word % out_ * in_ + word / out_ * PerWord() + i];
                                 })};
      StoreGroups(module, to, [](uint64_t i) { return i; });
      to[module + ".g_idx"] = {"I32", {in_}, BytesOf(group_of_)};
    } else if (Is("awq")) {
      // The bits of a word hold outputs 0, 2, 4, 6, 1, 3, 5, 7.
      const auto order = [](uint64_t i) { return i < 4 ? 2 * i : 2 * i - 7; };
      to[module + ".qweight"] = {"I32", {in_, out_ / 8}, Words([&](uint64_t word, uint64_t i) {
                                   return codes_[(word % (out_ / 8) * 8 + order(i)) * in_ + word / (out_ / 8)];
                                 })};
      StoreGroups(module, to, order);
    } else if (Is("packed")) {
      const uint64_t words = in_ / PerWord();
      to[module + ".weight_packed"] = {"I32", {out_, words}, Words([&](uint64_t word, uint64_t i) {
                                         return codes_[word / words * in_ + word % words * PerWord() + i];
                                       })};
      to[module + ".weight_shape"] = {"I64", {2}, BytesOf(std::vector<int64_t>{int64_t(out_), int64_t(in_)})};
      if (form_.act_order) to[module + ".weight_g_idx"] = {"I32", {in_}, BytesOf(group_of_)};
      StoreRowScales(module, to);
      if (!form_.has_zeros) return;
      std::vector<uint32_t> packed(out_ / PerWord() * groups_);
      for (uint64_t n = 0; n < out_; ++n) {
        for (uint64_t group = 0; group < groups_; ++group) {
          packed[n / PerWord() * groups_ + group] |= zeros_[n * groups_ + group]
                                                     << (n % PerWord() * static_cast<uint64_t>(form_.bits));
        }
      }
      to[module + ".weight_zero_point"] = {"I32", {out_ / PerWord(), groups_}, BytesOf(packed)};
    } else {
      std::string bytes;
      for (const uint32_t code : codes_) bytes.push_back(static_cast<char>(Is("int8") ? code ^ 0x80 : code));
      to[module + ".weight"] = {Is("int8") ? "I8" : "F8_E4M3", {out_, in_}, bytes};
      StoreRowScales(module, to);
      if (!Is("int8") || !form_.has_zeros) return;
      std::string zeros;
      for (const uint32_t zero : zeros_) zeros.push_back(static_cast<char>(zero ^ 0x80));
      to[module + ".weight_zero_point"] = {"I8", {out_, groups_}, zeros};
    }
  }

 private:
  bool Is(std::string_view layout) const { return layout == form_.layout; }
  uint64_t PerWord() const { return 32 / static_cast<uint64_t>(form_.bits); }

  double Code(uint64_t n, uint64_t k, uint64_t group) const {
    const uint32_t code = codes_[n * in_ + k];
    if (!Is("fp8")) return static_cast<double>(code) - zeros_[n * groups_ + group];
    const int exponent = static_cast<int>(code >> 3 & 15);
    const int mantissa = static_cast<int>(code & 7);
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
  }

  // Words of the codes code(word, place in it).
  template <typename F>
  std::string Words(const F& code) const {
    std::vector<uint32_t> words(out_ * in_ / PerWord());
    for (uint64_t word = 0; word < words.size(); ++word) {
      for (uint64_t i = 0; i < PerWord(); ++i) words[word] |= code(word, i) << (i * static_cast<uint64_t>(form_.bits));
    }
    return BytesOf(words);
  }

  // [groups, out], and zeros as words of outputs in some order.
  template <typename F>
  void StoreGroups(const std::string& module, RawTensors& to, const F& order) const {
    std::vector<uint16_t> scales(out_ * groups_);
    std::vector<uint32_t> zeros(out_ * groups_ / PerWord());
    for (uint64_t group = 0; group < groups_; ++group) {
      for (uint64_t n = 0; n < out_; ++n) scales[group * out_ + n] = scales_[n * groups_ + group];
      for (uint64_t i = 0; i < out_; ++i) {
        const uint64_t n = i / PerWord() * PerWord() + order(i % PerWord());
        const uint32_t zero = zeros_[n * groups_ + group] - static_cast<uint32_t>(form_.zero_offset);
        zeros[(group * out_ + i) / PerWord()] |= zero << (i % PerWord() * static_cast<uint64_t>(form_.bits));
      }
    }
    to[module + ".scales"] = {"F16", {groups_, out_}, BytesOf(scales)};
    to[module + ".qzeros"] = {"I32", {groups_, out_ / PerWord()}, BytesOf(zeros)};
  }

  void StoreRowScales(const std::string& module, RawTensors& to) const {
    std::vector<uint64_t> shape = {scales_.size() / groups_, groups_};
    if (form_.block_rows == 0) shape.clear();
    to[module + "." + form_.scale] = {"F16", shape, BytesOf(scales_)};
  }

  const QuantizedForm& form_;
  uint64_t out_, in_, group_, groups_ = 0;
  uint32_t order_seed_ = 0;
  std::vector<uint32_t> codes_;    // [out, in]
  std::vector<uint16_t> scales_;   // f16 [rows of scales, groups]
  std::vector<uint32_t> zeros_;    // [out, groups]
  std::vector<int32_t> group_of_;  // [in]
};

json Compressed(const char* format, const json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"ignore", {"lm_head"}},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

json Gptq(int bits, int group_size, bool desc_act, const char* layout) {
  return {{"quant_method", "gptq"}, {"bits", bits}, {"group_size", group_size},
          {"desc_act", desc_act},   {"sym", false}, {"checkpoint_format", layout}};
}

}  // namespace

std::vector<QuantizedForm> QuantizedForms() {
  const json fp8 = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  json fp8_blocks = fp8;
  fp8_blocks["weight_block_size"] = {16, 32};
  const auto packed = [](int bits, const char* strategy, bool symmetric) {
    return Compressed("pack-quantized", {{"num_bits", bits},
                                         {"type", "int"},
                                         {"strategy", strategy},
                                         {"group_size", strategy == std::string("group") ? 32 : -1},
                                         {"symmetric", symmetric}});
  };
  const auto compressed_fp8 = [](const char* strategy) {
    return Compressed("float-quantized",
                      {{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}});
  };
  const auto int8 = [](bool symmetric) {
    return Compressed("int-quantized",
                      {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}, {"symmetric", symmetric}});
  };
  return {
      {.name = "Fp8Blocks",
       .config = fp8_blocks,
       .layout = "fp8",
       .bits = 8,
       .block_rows = 16,
       .scale = "weight_scale_inv"},
      {.name = "Fp8Tensor",
       .config = fp8,
       .layout = "fp8",
       .bits = 8,
       .group_size = 0,
       .block_rows = 0,
       .scale = "weight_scale"},
      {.name = "Fp8Rows", .config = fp8, .layout = "fp8", .bits = 8, .group_size = 0, .scale = "weight_scale"},
      {.name = "CompressedFp8Rows",
       .config = compressed_fp8("channel"),
       .layout = "fp8",
       .bits = 8,
       .group_size = 0,
       .scale = "weight_scale"},
      {.name = "CompressedFp8Tensor",
       .config = compressed_fp8("tensor"),
       .layout = "fp8",
       .bits = 8,
       .group_size = 0,
       .block_rows = 0,
       .scale = "weight_scale"},
      {.name = "CompressedFp8Blocks",
       .config = Compressed("float-quantized",
                            {{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {16, 32}}}),
       .layout = "fp8",
       .bits = 8,
       .block_rows = 16,
       .scale = "weight_scale"},
      {.name = "Gptq", .config = Gptq(4, 32, false, "gptq"), .layout = "gptq", .zero_offset = 1},
      {.name = "GptqActOrder",
       .config = Gptq(4, 32, true, "gptq"),
       .layout = "gptq",
       .act_order = true,
       .zero_offset = 1},
      {.name = "GptqV2", .config = Gptq(4, 64, false, "gptq_v2"), .layout = "gptq", .group_size = 64},
      {.name = "GptqOneGroup",
       .config = Gptq(4, -1, false, "gptq"),
       .layout = "gptq",
       .group_size = 0,
       .zero_offset = 1},
      {.name = "Gptq8Bits",
       .config = Gptq(8, 32, true, "gptq"),
       .layout = "gptq",
       .bits = 8,
       .act_order = true,
       .zero_offset = 1},
      {.name = "Awq",
       .config = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "GEMM"}, {"zero_point", true}},
       .layout = "awq"},
      {.name = "Packed",
       .config = packed(4, "group", true),
       .layout = "packed",
       .has_zeros = false,
       .scale = "weight_scale"},
      {.name = "PackedActOrder",
       .config = packed(4, "group", true),
       .layout = "packed",
       .act_order = true,
       .has_zeros = false,
       .scale = "weight_scale"},
      {.name = "PackedZeros", .config = packed(4, "group", false), .layout = "packed", .scale = "weight_scale"},
      {.name = "PackedRows",
       .config = packed(8, "channel", true),
       .layout = "packed",
       .bits = 8,
       .group_size = 0,
       .has_zeros = false,
       .scale = "weight_scale"},
      {.name = "Int8",
       .config = int8(true),
       .layout = "int8",
       .bits = 8,
       .group_size = 0,
       .has_zeros = false,
       .scale = "weight_scale"},
      {.name = "Int8Zeros",
       .config = int8(false),
       .layout = "int8",
       .bits = 8,
       .group_size = 0,
       .scale = "weight_scale"},
  };
}

TinyModel QuantizableModel() {
  return {.hidden_size = 64,
          .intermediate_size = 96,
          .num_query_heads = 6,
          .num_kv_heads = 2,
          .head_dim = 16,
          .storage = Dtype::kF32};
}

void WriteQuantizedCheckpoint(TinyModel model, const QuantizedForm& form, const std::string& quantized,
                              const std::string& plain, const std::function<bool(const std::string& tensor)>& leave,
                              const std::function<void(RawTensors&)>& change) {
  WriteFile(plain + "/config.json", TinyConfigJson(model).dump());
  std::mt19937 random(model.seed);
  std::vector<TensorToWrite> tensors = TinyTensors(model);
  RawTensors raw;
  for (TensorToWrite& tensor : tensors) {
    const bool converts = tensor.shape.size() == 2 && absl::StrContains(tensor.name, "_proj.weight") &&
                          (leave == nullptr || !leave(tensor.name));
    if (converts) {
      const RandomWeight weight(form, tensor.shape[0], tensor.shape[1], random);
      tensor.values = weight.Values();
      weight.Store(tensor.name.substr(0, tensor.name.rfind('.')), raw);
    } else {
      raw[tensor.name] = {"F32", tensor.shape, BytesOf(tensor.values)};
    }
  }
  WriteFile(plain + "/model.safetensors", SafetensorsBytes(tensors));
  if (change != nullptr) change(raw);
  model.extra_fields["quantization_config"] = form.config;
  WriteFile(quantized + "/config.json", TinyConfigJson(model).dump());
  WriteRaw(raw, quantized + "/model.safetensors");
}

namespace {

// Codes and exponents of one tensor of gpt-oss's experts, [experts, outputs, inputs]; values by inputs, as plain
// tensors have them.
void StoreMxfp4(TensorToWrite& tensor, std::mt19937& random, RawTensors& to) {
  constexpr uint64_t kBlock = 32;
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const uint64_t experts = tensor.shape[0], in = tensor.shape[1], out = tensor.shape[2], groups = in / kBlock;
  std::string blocks(experts * out * in / 2, 0), scales(experts * out * groups, 0);
  for (uint64_t row = 0; row < experts * out; ++row) {
    for (uint64_t k = 0; k < in; ++k) {
      char& scale = scales[row * groups + k / kBlock];
      if (k % kBlock == 0) scale = static_cast<char>(122 + random() % 3);
      const auto code = static_cast<uint8_t>(random() % 16);
      char& byte = blocks[row * in / 2 + k / 2];
      byte = static_cast<char>(static_cast<uint8_t>(byte) | code << (k % 2 * 4));
      const double value = std::ldexp(magnitudes[code & 7], scale - 127);
      tensor.values[(row / out * in + k) * out + row % out] = static_cast<float>(code & 8 ? -value : value);
    }
  }
  to[tensor.name + "_blocks"] = {"U8", {experts, out, groups, kBlock / 2}, blocks};
  to[tensor.name + "_scales"] = {"U8", {experts, out, groups}, scales};
}

}  // namespace

void WriteMxfp4Checkpoint(TinyModel model, const std::string& quantized, const std::string& plain,
                          const std::function<void(RawTensors&)>& change) {
  WriteFile(plain + "/config.json", TinyConfigJson(model).dump());
  std::mt19937 random(model.seed);
  std::vector<TensorToWrite> tensors = TinyTensors(model);
  RawTensors raw;
  for (TensorToWrite& tensor : tensors) {
    tensor.dtype = Dtype::kF32;
    if (tensor.shape.size() == 3) {
      StoreMxfp4(tensor, random, raw);
    } else {
      raw[tensor.name] = {"F32", tensor.shape, BytesOf(tensor.values)};
    }
  }
  WriteFile(plain + "/model.safetensors", SafetensorsBytes(tensors));
  if (change != nullptr) change(raw);
  model.extra_fields["quantization_config"] = {
      {"quant_method", "mxfp4"},
      {"modules_to_not_convert",
       {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}};
  WriteFile(quantized + "/config.json", TinyConfigJson(model).dump());
  WriteRaw(raw, quantized + "/model.safetensors");
}

}  // namespace winnow
