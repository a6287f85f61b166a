#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/safetensors.h"

namespace winnow {

// A model directory in Hugging Face's layout: config.json and weights in `model.safetensors`, in the shards that
// `model.safetensors.index.json` names, or in `model-*.safetensors` without an index (looked for in this order).
// Tensors of the language model of a multimodal checkpoint have the names that they have where it is stored alone.
// Immutable after Open; safe to read from several threads. Views stay valid as long as the Checkpoint.
class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const std::string& config_json() const { return config_json_; }

  // NOT_FOUND names the tensor and the directory.
  absl::StatusOr<TensorView> Find(std::string_view name) const;
  bool Contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  std::vector<std::string> names() const;  // sorted
  uint64_t total_bytes() const { return total_bytes_; }
  // Path of the file that holds the tensor; empty if there is none.
  std::string_view FileOf(std::string_view name) const;

  // Gives the resident pages of a tensor back to the system; its bytes stay readable.
  void ReleasePages(std::string_view name) const;

  // SHA-256 (hex) over config.json, the headers, and of each tensor the first and last 4 KiB: quick, and different for
  // any two checkpoints that were not made to collide.
  std::string Digest() const;

 private:
  struct Location {
    size_t file = 0;   // into files_
    size_t entry = 0;  // into its entries
  };

  explicit Checkpoint(std::string directory) : directory_(std::move(directory)) {}
  absl::Status AddFile(const std::string& name);
  absl::Status LoadIndexed(const std::string& index_path);
  absl::Status LoadShards(const std::vector<std::string>& names);
  TensorView View(const Location& location) const;

  std::string directory_;
  std::string config_json_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Location, std::less<>> tensors_;
  uint64_t total_bytes_ = 0;
};

}  // namespace winnow
