#include "model/weights/vector_loader.h"

#include "common/base/check.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"

namespace winnow {

absl::Status VectorLoader::Append(const std::string& name) {
  WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_.Find(name));
  WINNOW_RETURN_IF_ERROR(CheckFinite(tensor, checkpoint_.FileOf(name)));
  size_t count = 1;
  for (const uint64_t dim : tensor.shape) count *= dim;
  WINNOW_CHECK(buffer_.size() + count <= buffer_.capacity());
  AppendAsF32(tensor, 0, count, buffer_);
  return absl::OkStatus();
}

std::span<const float> VectorLoader::LoadIfNamed(const std::string& name, float offset) {
  if (name.empty()) return {};
  const std::span<const float> loaded = Load({name});
  for (float& value : std::span(buffer_).subspan(buffer_.size() - loaded.size())) value += offset;
  return loaded;
}

std::span<const float> VectorLoader::LoadColumns(const std::string& name, int rows) {
  if (name.empty()) return {};
  const std::span<const float> loaded = Load({name});
  const std::vector<float> stored(loaded.begin(), loaded.end());
  const size_t count = static_cast<size_t>(rows), columns = stored.size() / count;
  float* const to = buffer_.data() + (buffer_.size() - stored.size());
  for (size_t i = 0; i < stored.size(); ++i) to[i % columns * count + i / columns] = stored[i];
  return loaded;
}

std::span<const float> VectorLoader::LoadRow(const std::string& name, int row, bool pairs) {
  const absl::StatusOr<TensorView> tensor = checkpoint_.Find(name);
  if (status_.ok()) status_ = tensor.status();
  if (status_.ok() && row == 0) status_ = CheckFinite(*tensor, checkpoint_.FileOf(name));
  if (!status_.ok()) return {};
  const size_t begin = buffer_.size(), count = tensor->shape[1];
  WINNOW_CHECK(begin + count <= buffer_.capacity());
  AppendAsF32(*tensor, static_cast<size_t>(row) * count, count, buffer_);
  const auto loaded = std::span(buffer_).subspan(begin);
  if (pairs) {
    const std::vector<float> stored(loaded.begin(), loaded.end());
    for (size_t i = 0; i < count; ++i) loaded[i % 2 * (count / 2) + i / 2] = stored[i];
  }
  return loaded;
}

}  // namespace winnow
