#include "router/admin/reload.h"

namespace winnow {

v1::ReloadResponse Reload(KeyRing* keys, const std::vector<TlsFiles>& certificates) {
  v1::ReloadResponse response;
  if (keys != nullptr) {
    v1::ReloadResponse::Source* source = response.add_sources();
    source->set_path(keys->path());
    const absl::StatusOr<size_t> read = keys->Reload();
    read.ok() ? source->set_read(absl::StrCat("API keys in force: ", *read))
              : source->set_error(std::string(read.status().message()));
  }
  for (const TlsFiles& files : certificates) {
    if (files.empty()) continue;
    v1::ReloadResponse::Source* source = response.add_sources();
    source->set_path(files.certificate);
    const absl::Status usable = CheckTlsFiles(files);
    usable.ok() ? source->set_read(
                      "certificate, key and authorities are good: they serve connections that are made "
                      "from a second from now on")
                : source->set_error(std::string(usable.message()));
  }
  return response;
}

}  // namespace winnow
