#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// An option of a process that names a file of its machine.
struct NeededFile {
  std::string option;  // of the process, and of `winnow up`
  std::string path;    // "{role}" stands for the role of the process

  bool operator==(const NeededFile&) const = default;
};

// A folder of the machine that a container has at the same path, to read. It is a folder and not a file, as a file that
// is replaced later, as certificates are, would be seen by nobody who has mounted the old one.
struct MountedFolder {
  std::string path;
  std::string secret;  // the end of a name that is its own among the folders of a cluster: "cache-rank", "api-keys"
};

// The folders that a process of that role ("router", "inference-rank", "cache-rank") needs for its files, each once.
// INVALID_ARGUMENT, with the field of the manifest, for paths that are not absolute, for folders at the root, which
// would hide those of the container, and for keys of certificates in a folder that several roles would share.
absl::StatusOr<std::vector<MountedFolder>> MountedFolders(const std::vector<NeededFile>& files, std::string_view role);

}  // namespace winnow
