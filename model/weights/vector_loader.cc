#include "model/weights/vector_loader.h"

#include "common/base/check.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"

namespace winnow {

absl::Status VectorLoader::Append(const std::string& name) {
  WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_.Find(name));
  WINNOW_RETURN_IF_ERROR(CheckFinite(tensor, checkpoint_.FileOf(name)));
  const size_t count = tensor.shape[0];
  WINNOW_CHECK(buffer_.size() + count <= buffer_.capacity());
  AppendAsF32(tensor, 0, count, buffer_);
  return absl::OkStatus();
}

}  // namespace winnow
