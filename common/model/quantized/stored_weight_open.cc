// What tensors a weight has in each format, and whether they are as they have to be.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/model/quantized/stored_weight.h"
#include "common/model/tensor_elements.h"

namespace winnow {
namespace {

using Shape = std::vector<uint64_t>;

std::string ShapeText(std::span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

uint64_t DivideUp(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

class StoredWeight::Opener {
 public:
  Opener(const Checkpoint& checkpoint, const WeightQuantization& quantization, std::string_view name, uint64_t outputs,
         uint64_t inputs)
      : checkpoint_(checkpoint), quantization_(quantization), name_(name) {
    absl::string_view module = AbslSv(name);
    absl::ConsumeSuffix(&module, ".weight");
    module_ = std::string(module);
    weight_.outputs_ = outputs;
    weight_.inputs_ = inputs;
  }

  absl::StatusOr<StoredWeight> Open() {
    if (IsPlain()) {
      WINNOW_ASSIGN_OR_RETURN(weight_.values_, Find(name_, {{weight_.outputs_, weight_.inputs_}}, "F32, F16 and BF16"));
    } else {
      weight_.format_ = quantization_.format;
      weight_.bits_ = quantization_.bits;
      const auto columns = static_cast<uint64_t>(quantization_.block_columns);
      weight_.group_size_ =
          static_cast<int>(columns == 0 || columns >= weight_.inputs_ ? DivideUp(weight_.inputs_, 32) * 32 : columns);
      WINNOW_RETURN_IF_ERROR(OpenCodes());
    }
    weight_.file_ = checkpoint_.FileOf(weight_.tensors_.front());
    return std::move(weight_);
  }

 private:
  using Format = WeightQuantization::Format;

  bool IsPlain() const {
    if (quantization_.format == Format::kMxfp4 || !quantization_.Converts(module_)) return true;
    const absl::StatusOr<TensorView> tensor = checkpoint_.Find(name_);
    return tensor.ok() && WeightDtype(tensor->dtype).has_value();
  }

  absl::Status OpenCodes() {
    const uint64_t out = weight_.outputs_, in = weight_.inputs_, groups = weight_.num_groups();
    const uint64_t per_word = 32 / static_cast<uint64_t>(weight_.bits_);
    switch (weight_.format_) {
      case Format::kNone:
      case Format::kMxfp4:
        break;
      case Format::kFp8: {
        WINNOW_ASSIGN_OR_RETURN(weight_.values_, Find(name_, {{out, in}}, "F8_E4M3"));
        return OpenRowScales();
      }
      case Format::kInt8: {
        WINNOW_ASSIGN_OR_RETURN(weight_.values_, Find(name_, {{out, in}}, "I8"));
        return OpenRowScales();
      }
      case Format::kPacked: {
        WINNOW_ASSIGN_OR_RETURN(weight_.values_,
                                Find(module_ + ".weight_packed", {{out, DivideUp(in, per_word)}}, "I32"));
        if (checkpoint_.Contains(module_ + ".weight_shape")) weight_.tensors_.push_back(module_ + ".weight_shape");
        WINNOW_RETURN_IF_ERROR(OpenInputOrder(module_ + ".weight_g_idx"));
        return OpenRowScales();
      }
      case Format::kGptq: {
        WINNOW_ASSIGN_OR_RETURN(weight_.values_, Find(module_ + ".qweight", {{DivideUp(in, per_word), out}}, "I32"));
        WINNOW_RETURN_IF_ERROR(OpenInputOrder(module_ + ".g_idx"));
        weight_.zero_offset_ = quantization_.zeros_lack_one ? 1 : 0;
        return OpenGroupScales(groups, DivideUp(out, per_word));
      }
      case Format::kAwq: {
        if (out % 8 != 0)
          return Error(absl::StrCat("has ", out, " outputs, which AWQ cannot store: not a multiple of 8"));
        WINNOW_ASSIGN_OR_RETURN(weight_.values_, Find(module_ + ".qweight", {{in, out / 8}}, "I32"));
        return OpenGroupScales(groups, out / 8);
      }
    }
    return absl::OkStatus();
  }

  absl::Status OpenGroupScales(uint64_t groups, uint64_t zero_words) {
    WINNOW_ASSIGN_OR_RETURN(weight_.scales_,
                            Find(module_ + ".scales", {{groups, weight_.outputs_}}, "F32, F16 and BF16"));
    WINNOW_ASSIGN_OR_RETURN(weight_.zeros_, Find(module_ + ".qzeros", {{groups, zero_words}}, "I32"));
    return absl::OkStatus();
  }

  absl::Status OpenRowScales() {
    const uint64_t out = weight_.outputs_, groups = weight_.num_groups();
    // "inv" is a misnomer: the weight is the code times this, too.
    std::string name = module_ + ".weight_scale_inv";
    if (!checkpoint_.Contains(name)) name = module_ + ".weight_scale";
    std::vector<Shape> shapes;
    const Shape whole[] = {{}, {1}, {1, 1}};
    const Shape rows[] = {{out, 1}, {out}};
    if (!quantization_.block_is_known || quantization_.block_rows == 0)
      shapes.assign(std::begin(whole), std::end(whole));
    if (!quantization_.block_is_known || (quantization_.block_rows == 1 && groups == 1)) {
      shapes.insert(shapes.end(), std::begin(rows), std::end(rows));
    }
    weight_.scale_rows_ = static_cast<uint64_t>(quantization_.block_rows);
    if (shapes.empty()) shapes.push_back({DivideUp(out, weight_.scale_rows_), groups});
    if (quantization_.block_is_known && quantization_.method == "fp8") name = module_ + ".weight_scale_inv";
    WINNOW_ASSIGN_OR_RETURN(weight_.scales_, Find(name, shapes, "F32, F16 and BF16"));
    if (!quantization_.block_is_known) {
      const bool is_whole = weight_.scales_.shape.empty() || weight_.scales_.shape[0] == 1;
      weight_.scale_rows_ = is_whole ? 0 : 1;
    }
    weight_.zero_offset_ = 1 << (weight_.bits_ - 1);
    return quantization_.has_zeros ? OpenRowZeros() : absl::OkStatus();
  }

  absl::Status OpenRowZeros() {
    const uint64_t out = weight_.outputs_, groups = weight_.num_groups();
    const std::string name = module_ + ".weight_zero_point";
    const absl::StatusOr<TensorView> found = checkpoint_.Find(name);
    if (found.ok() && found->dtype == TensorDtype::kI32) {
      const uint64_t per_word = 32 / static_cast<uint64_t>(weight_.bits_);
      WINNOW_ASSIGN_OR_RETURN(weight_.zeros_, Find(name, {{DivideUp(out, per_word), groups}}, "I32"));
    } else {
      WINNOW_ASSIGN_OR_RETURN(weight_.zeros_, Find(name, {{out, groups}}, "I8"));
    }
    return absl::OkStatus();
  }

  // The group of every input, where it is not the place in the order of the groups (act-order).
  absl::Status OpenInputOrder(const std::string& name) {
    if (!checkpoint_.Contains(name)) return absl::OkStatus();
    const uint64_t in = weight_.inputs_;
    WINNOW_ASSIGN_OR_RETURN(const TensorView index, Find(name, {{in}}, "I32"));
    std::vector<uint32_t> group(in);
    std::memcpy(group.data(), index.bytes.data(), in * sizeof(uint32_t));
    std::vector<uint32_t> order(in);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return group[a] < group[b]; });
    for (uint64_t i = 0; i < in; ++i) {
      if (group[order[i]] != i / static_cast<uint64_t>(weight_.group_size_)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", QuotedName(name), " in ", AbslSv(checkpoint_.FileOf(name)), " does not give ",
                         weight_.group_size_, " inputs to each of ", weight_.num_groups(), " groups"));
      }
    }
    if (std::is_sorted(order.begin(), order.end())) return absl::OkStatus();
    weight_.position_.resize(in);
    for (uint64_t i = 0; i < in; ++i) weight_.position_[order[i]] = static_cast<uint32_t>(i);
    weight_.input_order_ = std::move(order);
    return absl::OkStatus();
  }

  absl::StatusOr<TensorView> Find(const std::string& name, const std::vector<Shape>& shapes, std::string_view dtypes) {
    std::vector<std::string> texts;
    for (const Shape& shape : shapes) texts.push_back(ShapeText(shape));
    const std::string expected = absl::StrJoin(texts, " or ");
    const absl::StatusOr<TensorView> tensor = checkpoint_.Find(name);
    if (!tensor.ok()) {
      std::string problem = absl::StrCat("tensor ", QuotedName(name), " of shape ", expected, " is missing");
      if (weight_.format_ != Format::kNone)
        absl::StrAppend(&problem, ", which ", quantization_.method, " weights have");
      return absl::InvalidArgumentError(problem);
    }
    const std::string where = absl::StrCat("tensor ", QuotedName(name), " in ", AbslSv(checkpoint_.FileOf(name)));
    const bool fits = std::any_of(shapes.begin(), shapes.end(),
                                  [&](const Shape& shape) { return std::ranges::equal(tensor->shape, shape); });
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " has shape ", ShapeText(tensor->shape), " instead of ", expected));
    }
    const std::string_view dtype = TensorDtypeName(tensor->dtype);
    if (dtypes != dtype && !(dtypes == "F32, F16 and BF16" && WeightDtype(tensor->dtype).has_value())) {
      const std::string supported = dtypes.find(',') != std::string_view::npos
                                        ? absl::StrCat("supported are ", AbslSv(dtypes))
                                        : absl::StrCat("only ", AbslSv(dtypes), " is supported");
      return absl::InvalidArgumentError(absl::StrCat(where, " has dtype ", AbslSv(dtype), "; ", supported));
    }
    weight_.tensors_.push_back(name);
    return *tensor;
  }

  absl::Status Error(const std::string& problem) const {
    return absl::InvalidArgumentError(absl::StrCat("weight ", QuotedName(name_), " ", problem));
  }

  const Checkpoint& checkpoint_;
  const WeightQuantization& quantization_;
  std::string name_;
  std::string module_;
  StoredWeight weight_;
};

absl::StatusOr<StoredWeight> StoredWeight::Open(const Checkpoint& checkpoint, const WeightQuantization& quantization,
                                                std::string_view name, uint64_t outputs, uint64_t inputs) {
  return Opener(checkpoint, quantization, name, outputs, inputs).Open();
}

}  // namespace winnow
