#include "common/config/load.h"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "yaml-cpp/yaml.h"

namespace winnow {
namespace {

absl::Status UnknownKey(const Fields& fields, std::string_view key, std::string_view where) {
  const std::string nearest = fields.Nearest(key);
  return absl::InvalidArgumentError(
      absl::StrCat(AbslSv(where), "unknown option \"", AbslSv(key), "\"",
                   nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
}

std::string Where(std::string_view source, const YAML::Node& node) {
  const YAML::Mark mark = node.Mark();
  return mark.line >= 0 ? absl::StrCat(AbslSv(source), ":", mark.line + 1, ": ") : absl::StrCat(AbslSv(source), ": ");
}

absl::Status LoadMap(const Fields& fields, const YAML::Node& map, const std::string& prefix, std::string_view source) {
  for (const auto& entry : map) {
    const std::string key = prefix + entry.first.Scalar();
    const YAML::Node& value = entry.second;
    const std::string where = Where(source, entry.first);
    if (value.IsMap()) {
      if (fields.Find(key) != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(where, "option \"", key, "\": expected one value, got a map"));
      }
      WINNOW_RETURN_IF_ERROR(LoadMap(fields, value, key + ".", source));
      continue;
    }
    const Field* field = fields.Find(key);
    if (field == nullptr) return UnknownKey(fields, key, where);
    if (value.IsSequence()) {
      return absl::InvalidArgumentError(absl::StrCat(where, "option \"", key, "\": expected one value, got a list"));
    }
    const absl::Status status = field->parse(value.IsNull() ? std::string() : value.Scalar());
    if (!status.ok()) return Annotate(status, absl::StrCat(where, "option \"", key, "\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) return absl::NotFoundError(absl::StrCat("cannot read the configuration file ", path));
  return text.str();
}

struct Argument {
  const Field* field;
  std::string value;
};

// A plain YAML scalar cannot hold every text: what could be read as something else is quoted.
std::string YamlScalar(const std::string& text) {
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  const bool plain = !text.empty() &&
                     text.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                         "_./+-:") == std::string::npos &&
                     text.back() != ':' && text.front() != '-' && text.front() != ':';
  return plain ? text : emitter.c_str();
}

}  // namespace

absl::Status LoadYaml(const Fields& fields, const std::string& yaml, std::string_view source) {
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(AbslSv(source), ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
  if (!root.IsDefined() || root.IsNull()) return absl::OkStatus();
  if (!root.IsMap()) return absl::InvalidArgumentError(absl::StrCat(AbslSv(source), ": expected a map of options"));
  return LoadMap(fields, root, "", source);
}

std::string EnvironmentName(std::string_view option) {
  std::string name = absl::StrCat("WINNOW_", absl::AsciiStrToUpper(AbslSv(option)));
  for (char& c : name) {
    if (c == '-' || c == '.') c = '_';
  }
  return name;
}

void ForgetEnvironment(const Fields& fields) {
  for (const Field& field : fields.all()) unsetenv(EnvironmentName(field.name).c_str());
}

absl::StatusOr<CommandLine> LoadOptions(const Fields& fields, std::span<const std::string> arguments,
                                        Environment environment) {
  CommandLine command_line;
  std::vector<Argument> given;
  std::vector<std::string> files;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      command_line.positionals.insert(command_line.positionals.end(), arguments.begin() + i + 1, arguments.end());
      break;
    }
    if (argument == "--help" || argument == "-h") return CommandLine{.help = true, .positionals = {}};
    if (!absl::StartsWith(argument, "--")) {
      if (argument.size() > 1 && argument[0] == '-') return UnknownKey(fields, argument, "");
      command_line.positionals.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string key = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = argument.substr(equals + 1);
    const Field* field = fields.Find(key);
    const bool is_config = field == nullptr && key == "config";
    if (field == nullptr && !is_config) return UnknownKey(fields, key, "");
    if (!value.has_value() && field != nullptr && field->is_bool) {
      // "--flag false" would be read as flag and positional: a boolean's value needs the "=".
      value = "true";
    }
    if (!value.has_value()) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat("option \"", key, "\" needs a value"));
      }
      value = arguments[++i];
    }
    if (is_config) {
      files.push_back(*value);
    } else {
      given.push_back({field, *std::move(value)});
    }
  }
  for (const std::string& path : files) {
    WINNOW_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(path));
    WINNOW_RETURN_IF_ERROR(LoadYaml(fields, yaml, path));
  }
  for (const Field& field : fields.all()) {
    const std::string name = EnvironmentName(field.name);
    const char* value = environment == Environment::kRead ? std::getenv(name.c_str()) : nullptr;
    if (value == nullptr) continue;
    const absl::Status status = field.parse(value);
    if (!status.ok()) return Annotate(status, absl::StrCat("environment variable ", name));
  }
  for (const Argument& argument : given) {
    const absl::Status status = argument.field->parse(argument.value);
    if (!status.ok()) return Annotate(status, absl::StrCat("option \"", argument.field->name, "\""));
  }
  return command_line;
}

std::string DumpYaml(const Fields& fields) {
  std::string yaml;
  for (const Field& field : fields.all()) {
    absl::StrAppend(&yaml, field.name, ": ", YamlScalar(field.format()), "\n");
  }
  return yaml;
}

std::string HelpText(const Fields& fields) {
  std::string text;
  for (const Field& field : fields.all()) {
    const std::string value = field.format();
    absl::StrAppend(&text, "  --", field.name, "=", field.type);
    if (!value.empty()) absl::StrAppend(&text, "   (default ", value, ")");
    absl::StrAppend(&text, "\n");
    // The help text, filled to 100 columns.
    std::string line = "     ";
    for (absl::string_view word : absl::StrSplit(field.help, ' ')) {
      if (line.size() + 1 + word.size() > 100) {
        absl::StrAppend(&text, line, "\n");
        line = "     ";
      }
      absl::StrAppend(&line, " ", word);
    }
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace winnow
