#include "common/model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/model/json_fields.h"
#include "common/model/text_part.h"

namespace winnow {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMaxIndexBytes = 256 << 20;

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\\') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

// The shard count in "model-00001-of-00007.safetensors"; 0 if the name has another form.
size_t DeclaredShards(absl::string_view name) {
  const size_t of = name.rfind("-of-");
  uint64_t count = 0;
  if (of == absl::string_view::npos || !absl::ConsumeSuffix(&name, ".safetensors")) return 0;
  return absl::SimpleAtoi(name.substr(of + 4), &count) ? count : 0;
}

// Sorted names of the files `model-*.safetensors`.
absl::StatusOr<std::vector<std::string>> ListShards(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (absl::StartsWith(name, "model-") && absl::EndsWith(name, ".safetensors")) names.push_back(std::move(name));
  }
  if (error) return absl::NotFoundError(absl::StrCat(directory, ": cannot list: ", error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat(directory, ": not a directory"));
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(directory));
  WINNOW_ASSIGN_OR_RETURN(checkpoint->config_json_, ReadSmallFile(directory + "/config.json", kMaxConfigBytes));

  const std::string index_path = directory + "/model.safetensors.index.json";
  if (std::filesystem::exists(directory + "/model.safetensors", error)) {
    WINNOW_RETURN_IF_ERROR(checkpoint->LoadShards({"model.safetensors"}));
  } else if (std::filesystem::exists(index_path, error)) {
    WINNOW_RETURN_IF_ERROR(checkpoint->LoadIndexed(index_path));
  } else {
    WINNOW_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListShards(directory));
    if (names.empty()) {
      return absl::NotFoundError(absl::StrCat(directory,
                                              ": no model.safetensors, model.safetensors.index.json or "
                                              "model-*.safetensors (other weight formats are not read)"));
    }
    const size_t declared = DeclaredShards(names.front());
    if (declared != 0 && declared != names.size()) {
      return absl::NotFoundError(
          absl::StrCat(directory, ": ", names.size(), " of ", declared, " model-*.safetensors shards are there"));
    }
    WINNOW_RETURN_IF_ERROR(checkpoint->LoadShards(names));
  }
  for (const auto& [name, location] : checkpoint->tensors_) {
    checkpoint->total_bytes_ += checkpoint->View(location).bytes.size();
  }
  return checkpoint;
}

absl::Status Checkpoint::AddFile(const std::string& name) {
  WINNOW_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(directory_ + "/" + name));
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::LoadShards(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    WINNOW_RETURN_IF_ERROR(AddFile(name));
    const SafetensorsFile& file = files_.back();
    for (size_t i = 0; i < file.entries().size(); ++i) {
      const auto [it, inserted] =
          tensors_.emplace(TextTensorName(file.entries()[i].name), Location{files_.size() - 1, i});
      if (!inserted) {
        return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", QuotedName(it->first), " is also in ",
                                                       files_[it->second.file].path()));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::LoadIndexed(const std::string& index_path) {
  WINNOW_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(index_path, kMaxIndexBytes));
  WINNOW_ASSIGN_OR_RETURN(const nlohmann::json root, ParseJsonObject(text, index_path));
  const auto map = root.find("weight_map");
  if (map == root.end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": weight_map must be an object"));
  }
  std::map<std::string, std::vector<std::string>> tensors_of_file;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": weight_map: the file of ", QuotedName(tensor), " must be a string"));
    }
    const auto& name = file.get_ref<const std::string&>();
    if (!IsPlainFileName(name)) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": weight_map: tensor ", QuotedName(tensor),
                                                     " names the file ", QuotedName(name),
                                                     ", which is not a plain name inside the directory"));
    }
    tensors_of_file[name].push_back(tensor);
  }
  for (const auto& [name, tensors] : tensors_of_file) {
    if (absl::Status status = AddFile(name); !status.ok()) return Annotate(status, index_path);
    const std::vector<TensorEntry>& entries = files_.back().entries();
    std::map<std::string_view, size_t> positions;
    for (size_t i = 0; i < entries.size(); ++i) positions.emplace(entries[i].name, i);
    for (const std::string& tensor : tensors) {
      const auto it = positions.find(tensor);
      if (it == positions.end()) {
        return absl::NotFoundError(absl::StrCat(index_path, ": weight_map says that ", name, " holds tensor ",
                                                QuotedName(tensor), ", but it does not"));
      }
      tensors_.emplace(TextTensorName(tensor), Location{files_.size() - 1, it->second});
    }
  }
  return absl::OkStatus();
}

TensorView Checkpoint::View(const Location& location) const {
  const SafetensorsFile& file = files_[location.file];
  return file.View(file.entries()[location.entry]);
}

absl::StatusOr<TensorView> Checkpoint::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return absl::NotFoundError(absl::StrCat(directory_, ": no tensor ", QuotedName(name)));
  return View(it->second);
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, location] : tensors_) names.push_back(name);
  return names;
}

std::string_view Checkpoint::FileOf(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? std::string_view() : files_[it->second.file].path();
}

void Checkpoint::ReleasePages(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) files_[it->second.file].ReleasePages(View(it->second).bytes);
}

}  // namespace winnow
