#include "router/keys/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "yaml-cpp/yaml.h"

namespace winnow {
namespace {

constexpr size_t kSha256HexDigits = 64;

std::string FieldName(const Field& field) {
  return absl::StrReplaceAll(field.name, {{"-", "_"}});
}

absl::Status At(const YAML::Node& node, std::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("line ", node.Mark().line + 1, ": ", AbslSv(message)));
}

bool IsHex(const std::string& text) {
  return text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

absl::StatusOr<ApiKey> ParseKey(const YAML::Node& map) {
  if (!map.IsMap()) return At(map, "expected a map of a key's fields");
  ApiKey key;
  Fields fields;
  key.DeclareStored(fields);
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string name = entry.first.Scalar();
    const Field* field = fields.Find(name);
    if (field == nullptr) {
      const std::string nearest = fields.Nearest(name);
      return At(entry.first, absl::StrCat("unknown field \"", name, "\"",
                                          nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
    }
    if (!seen.insert(field->name).second) return At(entry.first, absl::StrCat(name, " was given before"));
    if (!entry.second.IsScalar()) return At(entry.first, absl::StrCat(name, ": expected one value"));
    const absl::Status parsed = field->parse(entry.second.Scalar());
    if (!parsed.ok()) return At(entry.first, absl::StrCat(name, ": ", parsed.message()));
  }
  if (key.name.empty()) return At(map, "a key needs a name");
  if (key.id.empty() || !IsHex(key.id)) return At(map, absl::StrCat("key ", key.name, ": id is not hexadecimal"));
  if (key.salt.empty() || !IsHex(key.salt)) return At(map, absl::StrCat("key ", key.name, ": salt is not hexadecimal"));
  if (key.sha256.size() != kSha256HexDigits || !IsHex(key.sha256)) {
    return At(map, absl::StrCat("key ", key.name, ": sha256 is not ", kSha256HexDigits, " hexadecimal digits"));
  }
  return key;
}

}  // namespace

absl::StatusOr<KeyFile> KeyFile::Parse(const std::string& yaml) {
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("line ", error.mark.line + 1, ": not YAML"));
  }
  KeyFile file;
  if (!root.IsDefined() || root.IsNull()) return file;
  if (!root.IsMap()) return At(root, "expected a map with the list \"keys\"");
  std::set<std::string> names, ids;
  std::map<std::string, double> weights;
  for (const auto& entry : root) {
    if (entry.first.Scalar() != "keys") {
      return At(entry.first, absl::StrCat("unknown field \"", entry.first.Scalar(), "\"; expected \"keys\""));
    }
    if (entry.second.IsNull()) continue;
    if (!entry.second.IsSequence()) return At(entry.first, "keys: expected a list");
    for (const YAML::Node& node : entry.second) {
      WINNOW_ASSIGN_OR_RETURN(ApiKey key, ParseKey(node));
      if (!names.insert(key.name).second) return At(node, absl::StrCat("there are two keys named ", key.name));
      if (!ids.insert(key.id).second) return At(node, absl::StrCat("there are two keys with the id ", key.id));
      const auto [weight, is_first] = weights.try_emplace(key.tenant_name(), key.weight);
      if (weight->second != key.weight) {
        return At(node, absl::StrCat("key ", key.name, ": other keys of the tenant ", key.tenant_name(),
                                     " have another weight"));
      }
      file.keys.push_back(std::move(key));
    }
  }
  return file;
}

absl::StatusOr<KeyFile> KeyFile::Load(const std::string& path) {
  std::ifstream in(path);
  if (!in.is_open()) return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", strerror(errno)));
  absl::StatusOr<KeyFile> file = Parse(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!file.ok()) return Annotate(file.status(), path);
  return file;
}

std::string KeyFile::Format() const {
  YAML::Emitter out;
  out << YAML::BeginMap << YAML::Key << "keys" << YAML::Value << YAML::BeginSeq;
  for (const ApiKey& each : keys) {
    ApiKey key = each, plain;
    Fields fields, defaults;
    key.DeclareStored(fields);
    plain.DeclareStored(defaults);
    out << YAML::BeginMap;
    for (size_t i = 0; i < fields.all().size(); ++i) {
      const std::string value = fields.all()[i].format();
      if (value == defaults.all()[i].format()) continue;
      out << YAML::Key << FieldName(fields.all()[i]) << YAML::Value << value;
    }
    out << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::EndMap;
  return absl::StrCat("# API keys of a router: `winnow keys` writes it.\n", out.c_str(), "\n");
}

absl::Status KeyFile::Save(const std::string& path) const {
  const std::string text = Format();
  const std::string draft = absl::StrCat(path, ".new");
  const auto failed = [&](const char* step) {
    const int error = errno;
    unlink(draft.c_str());
    return absl::UnavailableError(absl::StrCat("cannot ", step, " ", path, ": ", strerror(error)));
  };
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return failed("write");
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  close(fd);
  if (!written) return failed("write");
  if (rename(draft.c_str(), path.c_str()) != 0) return failed("replace");
  return absl::OkStatus();
}

}  // namespace winnow
