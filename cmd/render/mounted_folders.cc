#include "cmd/render/mounted_folders.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_replace.h"
#include "cmd/manifest/manifest_fields.h"

namespace winnow {
namespace {

constexpr char kRole[] = "{role}";

// Where the manifest says it.
std::string FieldOf(const std::string& option) {
  for (const ManifestField& field : ManifestFields()) {
    if (field.option == option) return std::string(field.path);
  }
  return "--" + option;
}

// Folders are told apart by what lies in them; those of one role's certificate and key are mostly the same one.
std::string SecretOf(const std::string& option, std::string_view role) {
  if (option == "tls-cert") return std::string(role);
  if (option == "tls-key") return absl::StrCat(AbslSv(role), "-key");
  if (option == "tls-ca") return "authority";
  if (option == "http-tls-cert") return "http";
  if (option == "http-tls-key") return "http-key";
  return option;
}

}  // namespace

absl::StatusOr<std::vector<MountedFolder>> MountedFolders(const std::vector<NeededFile>& files, std::string_view role) {
  std::vector<MountedFolder> folders;
  for (const NeededFile& file : files) {
    const std::string folder = std::filesystem::path(file.path).parent_path().string();
    const auto error = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat(FieldOf(file.option), ": ", file.path, ": ", what));
    };
    if (!file.path.starts_with('/')) {
      return error("containers get the folder of a file at the same path, which must not be a relative one");
    }
    if (std::count(folder.begin(), folder.end(), '/') < 2) {
      return error(absl::StrCat("containers get the folder of a file, and ", folder,
                                " would hide theirs: put the file into a folder of its own, such as /etc/winnow/",
                                file.option));
    }
    if (file.option == "tls-key" && folder.find(kRole) == std::string::npos) {
      return error(
          "containers get the folder of a file, and with this one each role would have the keys of all: put {role} "
          "into the name of the folder, as in /etc/winnow/{role}/tls.key");
    }
    const std::string path = absl::StrReplaceAll(folder, {{kRole, AbslSv(role)}});
    const bool is_there =
        std::any_of(folders.begin(), folders.end(), [&](const MountedFolder& other) { return other.path == path; });
    if (!is_there) folders.push_back({path, SecretOf(file.option, role)});
  }
  return folders;
}

}  // namespace winnow
