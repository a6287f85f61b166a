// winnow keys: the file of a router's API keys.
#include <algorithm>
#include <filesystem>

#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "common/base/json.h"
#include "router/keys/key_file.h"

namespace winnow {
namespace {

extern const Command kAddCommand, kListKeysCommand, kRevokeCommand;

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

struct ListKeysOptions {
  bool json = false;

  void Declare(Fields& fields) { fields.Bool("json", &json, "Print JSON: a list of objects, a key each."); }
};

// What a key says beside its name and tenant, where that is not the default.
std::vector<std::pair<std::string, std::string>> LimitsOf(ApiKey key) {
  ApiKey plain;
  key.tenant = key.name = "";
  const Fields fields = Fields::Of(key), defaults = Fields::Of(plain);
  std::vector<std::pair<std::string, std::string>> limits;
  for (size_t i = 0; i < fields.all().size(); ++i) {
    const std::string value = fields.all()[i].format();
    if (value != defaults.all()[i].format()) limits.emplace_back(fields.all()[i].name, value);
  }
  return limits;
}

void Print(const KeyFile& file) {
  for (const ApiKey& key : file.keys) {
    std::printf("%s id=%s tenant=%s", key.name.c_str(), key.id.c_str(), key.tenant_name().c_str());
    for (const auto& [name, value] : LimitsOf(key)) std::printf(" %s=%s", name.c_str(), value.c_str());
    std::printf("\n");
  }
}

void PrintJson(const KeyFile& file) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ApiKey& key : file.keys) {
    nlohmann::ordered_json each = {{"name", key.name}, {"id", key.id}, {"tenant", key.tenant_name()}};
    for (const auto& [name, value] : LimitsOf(key)) each[name] = value;
    list.push_back(std::move(each));
  }
  std::printf("%s\n", list.dump(2).c_str());
}

absl::Status List(const std::string& path, bool json) {
  WINNOW_ASSIGN_OR_RETURN(const KeyFile file, KeyFile::Load(path));
  json ? PrintJson(file) : Print(file);
  return absl::OkStatus();
}

absl::Status Revoke(const std::string& path, const std::string& name) {
  WINNOW_ASSIGN_OR_RETURN(KeyFile file, KeyFile::Load(path));
  if (std::erase_if(file.keys, [&](const ApiKey& key) { return key.name == name; }) == 0) {
    return absl::NotFoundError(absl::StrCat(path, " has no key named ", name));
  }
  return file.Save(path);
}

int Ended(const Command& command, const absl::Status& status) {
  if (status.ok()) return kExitOk;
  return Fail(command, status, absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure);
}

int WrongOperands(const Command& command, const char* expected) {
  return Fail(command, absl::InvalidArgumentError(absl::StrCat("expected ", expected)), kExitUsage);
}

int AddMain(const Arguments& arguments) {
  ApiKey key;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kAddCommand, arguments, key, &words)) return *code;
  if (words.size() != 1) return WrongOperands(kAddCommand, "FILE --name=NAME");
  return Ended(kAddCommand, Add(words[0], std::move(key)));
}

int ListKeysMain(const Arguments& arguments) {
  ListKeysOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kListKeysCommand, arguments, options, &words)) return *code;
  if (words.size() != 1) return WrongOperands(kListKeysCommand, "FILE");
  return Ended(kListKeysCommand, List(words[0], options.json));
}

int RevokeMain(const Arguments& arguments) {
  NoOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kRevokeCommand, arguments, options, &words)) return *code;
  if (words.size() != 2) return WrongOperands(kRevokeCommand, "FILE NAME");
  return Ended(kRevokeCommand, Revoke(words[0], words[1]));
}

const Command kAddCommand = {
    .name = "keys add",
    .summary = "make a key with these limits and print it, once: the file has a salted digest of it",
    .synopsis = "FILE --name=NAME [--limit=value ...]",
    .about = "The file is made where there is none. The router takes it with --api-keys=FILE.\n",
    .operands = {.files = true},
    .options = Declared<ApiKey>,
    .run = AddMain};
const Command kListKeysCommand = {.name = "keys list",
                                  .summary = "print names, ids, tenants and limits",
                                  .synopsis = "FILE [--json]",
                                  .operands = {.files = true},
                                  .options = Declared<ListKeysOptions>,
                                  .run = ListKeysMain};
const Command kRevokeCommand = {.name = "keys revoke",
                                .summary = "take a key out: new requests with it are refused within seconds",
                                .synopsis = "FILE NAME",
                                .operands = {.files = true},
                                .run = RevokeMain};
constexpr const Command* kKeysSubcommands[] = {&kAddCommand, &kListKeysCommand, &kRevokeCommand};

}  // namespace

const Command kKeysCommand = {.name = "keys",
                              .summary = "make, list and revoke the API keys of a router",
                              .synopsis = "COMMAND",
                              .subcommands = kKeysSubcommands};

}  // namespace winnow
