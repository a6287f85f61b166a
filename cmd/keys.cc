// winnow keys: the file of a router's API keys.
#include <algorithm>
#include <filesystem>

#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "router/keys/key_file.h"

namespace winnow {
namespace {

constexpr char kUsage[] =
    "add FILE --name=NAME [--limit=value ...] | list FILE | revoke FILE NAME\n"
    "\n"
    "  add FILE --name=NAME   makes a key with these limits and prints it, once: the file has a salted digest of it.\n"
    "                         The file is made where there is none. Router: --api-keys=FILE\n"
    "  list FILE              prints names, ids, tenants and limits\n"
    "  revoke FILE NAME       takes the key out: new requests with it are refused within seconds\n";

absl::Status Add(const std::string& path, ApiKey key) {
  if (key.name.empty()) return absl::InvalidArgumentError("--name=NAME is required");
  KeyFile file;
  if (std::filesystem::exists(path)) {
    WINNOW_ASSIGN_OR_RETURN(file, KeyFile::Load(path));
  }
  const std::string text = IssueSecret(key);
  file.keys.push_back(std::move(key));
  // What could not be read again is not written.
  WINNOW_RETURN_IF_ERROR(KeyFile::Parse(file.Format()).status());
  WINNOW_RETURN_IF_ERROR(file.Save(path));
  std::printf("%s\n", text.c_str());
  return absl::OkStatus();
}

absl::Status List(const std::string& path) {
  WINNOW_ASSIGN_OR_RETURN(const KeyFile file, KeyFile::Load(path));
  for (const ApiKey& each : file.keys) {
    ApiKey key = each, plain;
    std::printf("%s id=%s tenant=%s", key.name.c_str(), key.id.c_str(), key.tenant_name().c_str());
    key.tenant = key.name = "";
    const Fields fields = Fields::Of(key), defaults = Fields::Of(plain);
    for (size_t i = 0; i < fields.all().size(); ++i) {
      const std::string value = fields.all()[i].format();
      if (value != defaults.all()[i].format()) std::printf(" %s=%s", fields.all()[i].name.c_str(), value.c_str());
    }
    std::printf("\n");
  }
  return absl::OkStatus();
}

absl::Status Revoke(const std::string& path, const std::string& name) {
  WINNOW_ASSIGN_OR_RETURN(KeyFile file, KeyFile::Load(path));
  if (std::erase_if(file.keys, [&](const ApiKey& key) { return key.name == name; }) == 0) {
    return absl::NotFoundError(absl::StrCat(path, " has no key named ", name));
  }
  return file.Save(path);
}

}  // namespace

int KeysMain(const Arguments& arguments) {
  ApiKey key;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine("keys", kUsage, arguments, key, &words)) return *code;
  absl::Status status = absl::InvalidArgumentError("expected add FILE, list FILE or revoke FILE NAME");
  const std::string what = words.empty() ? "" : words.front();
  if (what == "add" && words.size() == 2) {
    status = Add(words[1], std::move(key));
  } else if (what == "list" && words.size() == 2) {
    status = List(words[1]);
  } else if (what == "revoke" && words.size() == 3) {
    status = Revoke(words[1], words[2]);
  }
  return status.ok() ? 0 : Fail("keys", status, absl::IsInvalidArgument(status) ? 2 : 1);
}

}  // namespace winnow
