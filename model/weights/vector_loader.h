#pragma once
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/checkpoint.h"

namespace winnow {

// Converts vectors of the checkpoint to f32, one after the other in a buffer of known size, whose
// capacity is never exceeded: what was handed out stays where it is. Every value is checked to be finite.
class VectorLoader {
 public:
  VectorLoader(const Checkpoint& checkpoint, std::vector<float>& buffer) : checkpoint_(checkpoint), buffer_(buffer) {}

  // The named tensors as one vector; the first error stays.
  std::span<const float> Load(const std::vector<std::string>& names) {
    const size_t begin = buffer_.size();
    for (const std::string& name : names) {
      if (status_.ok()) status_ = Append(name);
    }
    return std::span<const float>(buffer_).subspan(begin);
  }
  // Nothing where the model has no such tensor, which an empty name says. `offset` is added to each element.
  std::span<const float> LoadIfNamed(const std::string& name, float offset = 0);
  // A matrix of so many rows, column by column; nothing where the model has none.
  std::span<const float> LoadColumns(const std::string& name, int rows);
  // One row of a matrix. `pairs`: its elements belong in turn to two halves, which lie one after the other then.
  std::span<const float> LoadRow(const std::string& name, int row, bool pairs);
  const absl::Status& status() const { return status_; }

 private:
  absl::Status Append(const std::string& name);

  const Checkpoint& checkpoint_;
  std::vector<float>& buffer_;
  absl::Status status_;
};

}  // namespace winnow
