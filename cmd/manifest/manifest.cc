#include "cmd/manifest/manifest.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cmd/manifest/manifest_fields.h"
#include "common/base/nearest_name.h"
#include "common/config/host_address.h"
#include "yaml-cpp/yaml.h"

namespace winnow {
namespace {

constexpr std::string_view kNodes = "nodes";
constexpr std::string_view kDeploy = "deploy";

int LineOf(const YAML::Node& node) {
  return node.Mark().line >= 0 ? node.Mark().line + 1 : 0;
}

const char* KindOf(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  return node.IsSequence() ? "a list" : "one value";
}

std::string Canonical(std::string_view name) {
  return absl::StrReplaceAll(AbslSv(name), {{"-", "_"}});
}

// What all of the tools that manifests are rendered for take as a name.
bool IsLabel(std::string_view name) {
  return !name.empty() && name.size() <= 40 && name.front() != '-' && name.back() != '-' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

// Puts `path` wherever the option, and no longer one that begins like it, stands in the message; whether it did.
bool ReplaceOption(const std::string& option, std::string_view path, std::string& message) {
  bool found = false;
  for (size_t at = 0; (at = message.find(option, at)) != std::string::npos;) {
    const size_t end = at + option.size();
    const bool is_longer = end < message.size() && (message[end] == '-' || absl::ascii_isalpha(message[end]));
    if (!is_longer) message.replace(at, option.size(), path);
    found = found || !is_longer;
    at += is_longer ? option.size() : path.size();
  }
  return found;
}

void DeclareDeviceField(Fields& fields, const char* name, DeviceChoice* device, std::string help) {
  fields.Custom(
      name, "auto|cpu|cuda[:N[,M...]]", std::move(help),
      [device](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(*device, ParseDeviceChoice(text));
        return absl::OkStatus();
      },
      [device] { return ToString(*device); });
}

class Parser {
 public:
  ParsedManifest Parse(const std::string& yaml) {
    YAML::Node root;
    try {
      root = YAML::Load(yaml);
    } catch (const YAML::Exception& error) {
      Add(error.mark.line + 1, "", absl::StrCat("not YAML: ", error.msg));
      return std::move(result_);
    }
    if (!root.IsDefined() || root.IsNull() || !root.IsMap()) {
      Add(0, "", "expected a map of sections");
      return std::move(result_);
    }
    const Fields options = Fields::Of(result_.manifest.options);
    for (const ManifestField& field : ManifestFields()) table_[std::string(field.path)] = options.Find(field.option);
    const Fields deploy = Fields::Of(result_.manifest.deploy);
    for (const Field& field : deploy.all()) table_[absl::StrCat(AbslSv(kDeploy), ".", Canonical(field.name))] = &field;
    for (const auto& [path, field] : table_) {
      if (const size_t dot = path.find('.'); dot != std::string::npos) sections_.insert(path.substr(0, dot));
    }
    ReadTop(root);
    if (result_.errors.empty()) CheckWhole();
    std::stable_sort(result_.errors.begin(), result_.errors.end(),
                     [](const ManifestError& a, const ManifestError& b) { return a.line < b.line; });
    return std::move(result_);
  }

 private:
  void Add(int line, std::string field, std::string message) {
    result_.errors.push_back({line, std::move(field), std::move(message)});
  }

  void Unknown(const YAML::Node& key, const std::string& path, const std::vector<std::string>& known) {
    const std::vector<std::string_view> names(known.begin(), known.end());
    const std::string_view nearest = NearestName(Canonical(path), names);
    Add(LineOf(key), path,
        absl::StrCat("unknown field",
                     nearest.empty() ? "" : absl::StrCat("; did you mean \"", AbslSv(nearest), "\"?")));
  }

  std::vector<std::string> KnownPaths() const {
    std::vector<std::string> known = {std::string(kNodes)};
    for (const auto& [path, field] : table_) known.push_back(path);
    known.insert(known.end(), sections_.begin(), sections_.end());
    return known;
  }

  // Whether `key` has not come before in its map, which YAML does not check.
  bool IsFirst(const YAML::Node& key, const std::string& path) {
    const auto [it, is_first] = lines_.try_emplace(Canonical(path), LineOf(key));
    if (!is_first) Add(LineOf(key), path, absl::StrCat("it was given before, in line ", it->second));
    return is_first;
  }

  void ReadTop(const YAML::Node& root) {
    for (const auto& entry : root) {
      const std::string name = entry.first.Scalar();
      if (!IsFirst(entry.first, name)) continue;
      if (name == kNodes) {
        ReadNodes(entry.second);
      } else if (sections_.contains(name)) {
        ReadSection(name, entry.first, entry.second);
      } else if (const auto it = table_.find(Canonical(name)); it != table_.end()) {
        ReadValue(name, *it->second, entry.first, entry.second);
      } else {
        Unknown(entry.first, name, KnownPaths());
      }
    }
  }

  void ReadSection(const std::string& section, const YAML::Node& key, const YAML::Node& map) {
    if (map.IsNull()) return;
    if (!map.IsMap()) return Add(LineOf(key), section, absl::StrCat("expected a map of fields, got ", KindOf(map)));
    for (const auto& entry : map) {
      const std::string path = absl::StrCat(section, ".", entry.first.Scalar());
      if (!IsFirst(entry.first, path)) continue;
      const auto it = table_.find(Canonical(path));
      if (it == table_.end()) {
        Unknown(entry.first, path, KnownPaths());
      } else {
        ReadValue(path, *it->second, entry.first, entry.second);
      }
    }
  }

  void ReadValue(const std::string& path, const Field& field, const YAML::Node& key, const YAML::Node& value) {
    if (!value.IsScalar()) {
      return Add(LineOf(key), path,
                 value.IsNull() ? absl::StrCat("expected a value (", field.type, ")")
                                : absl::StrCat("expected one value, got ", KindOf(value)));
    }
    const absl::Status status = field.parse(value.Scalar());
    if (!status.ok()) Add(LineOf(key), path, std::string(status.message()));
  }

  void ReadNodes(const YAML::Node& nodes) {
    if (nodes.IsNull()) return;
    if (!nodes.IsMap()) {
      return Add(LineOf(nodes), std::string(kNodes),
                 absl::StrCat("expected a map of nodes by name, got ", KindOf(nodes)));
    }
    for (const auto& entry : nodes) {
      ManifestNode node;
      node.name = entry.first.Scalar();
      const std::string path = absl::StrCat(AbslSv(kNodes), ".", node.name);
      if (!IsFirst(entry.first, path)) continue;
      if (!entry.second.IsMap()) {
        Add(LineOf(entry.first), path, absl::StrCat("expected a map of fields, got ", KindOf(entry.second)));
        continue;
      }
      const Fields fields = Fields::Of(node);
      for (const auto& inner : entry.second) {
        const std::string name = inner.first.Scalar();
        if (!IsFirst(inner.first, absl::StrCat(path, ".", name))) continue;
        const Field* field = fields.Find(name);
        if (field == nullptr) {
          std::vector<std::string> known;
          for (const Field& each : fields.all()) known.push_back(absl::StrCat(path, ".", Canonical(each.name)));
          Unknown(inner.first, absl::StrCat(path, ".", name), known);
        } else {
          ReadValue(absl::StrCat(path, ".", name), *field, inner.first, inner.second);
        }
      }
      result_.manifest.nodes.push_back(std::move(node));
    }
  }

  int LineOfField(const std::string& path) const {
    const auto it = lines_.find(path);
    return it == lines_.end() ? 0 : it->second;
  }

  // Messages of UpOptions name its options: where one stands in the file is where the error is.
  void AddForOptions(const absl::Status& status) {
    std::string message(status.message());
    std::string first;
    for (const ManifestField& field : ManifestFields()) {
      const std::string option = absl::StrCat("--", AbslSv(field.option));
      if (!ReplaceOption(option, field.path, message)) continue;
      if (first.empty() || (LineOfField(first) == 0 && LineOfField(std::string(field.path)) > 0)) first = field.path;
    }
    Add(first.empty() ? 0 : LineOfField(first), first, std::move(message));
  }

  void CheckWhole() {
    const Manifest& manifest = result_.manifest;
    if (!IsLabel(manifest.deploy.name)) {
      Add(LineOfField("deploy.name"), "deploy.name", "expected small letters, digits and \"-\", such as winnow-1");
    }
    if (manifest.options.model.empty()) Add(LineOfField("model"), "model.path", "it is required");
    if (manifest.nodes.empty()) {
      if (const absl::Status status = manifest.options.CheckConsistency(); !status.ok()) AddForOptions(status);
      return;
    }
    CheckNodes();
    if (!result_.errors.empty()) return;
    for (const ManifestNode& node : manifest.nodes) {
      const absl::StatusOr<UpOptions> options = manifest.OptionsOf(node.name);
      const absl::Status status = options.ok() ? options->CheckConsistency() : options.status();
      if (status.ok()) continue;
      AddForOptions(Annotate(status, absl::StrCat("node ", node.name)));
      return;
    }
  }

  void CheckNodes() {
    for (const char* path : {"router.count", "inference.ranks", "inference.prefill_ranks", "inference.decode_ranks",
                             "cache.ranks", "inference.device", "cache.device"}) {
      if (lines_.contains(path)) Add(lines_.at(path), path, "with nodes, each node says its own");
    }
    int routers = 0, inference = 0, prefill = 0, decode = 0, caches = 0;
    for (const ManifestNode& node : result_.manifest.nodes) {
      const std::string path = absl::StrCat(AbslSv(kNodes), ".", node.name);
      if (node.address.empty()) Add(LineOfField(path), path + ".address", "it is required");
      if (IsWildcardHost(node.address)) Add(LineOfField(path), path + ".address", "nobody can connect to a wildcard");
      routers += node.router ? 1 : 0;
      inference += node.inference_ranks;
      prefill += node.prefill_ranks;
      decode += node.decode_ranks;
      caches += node.cache_ranks;
    }
    const int line = LineOfField(std::string(kNodes));
    const auto need = [&](bool there, const char* what) {
      if (!there) Add(line, std::string(kNodes), absl::StrCat("no node has ", what));
    };
    need(routers > 0, "a router (router: true)");
    CheckRouterAddresses(routers);
    need(inference + prefill + decode > 0, "inference ranks");
    need(caches > 0 || result_.manifest.options.hosts_cache(), "cache ranks");
    if ((prefill > 0) != (decode > 0)) Add(line, std::string(kNodes), "prefill_ranks and decode_ranks need each other");
    if (inference > 0 && prefill + decode > 0) {
      Add(line, std::string(kNodes), "inference_ranks and prefill_ranks with decode_ranks exclude each other");
    }
  }

  // Where routers of nodes listen is said once for all of them.
  void CheckRouterAddresses(int routers) {
    const UpOptions& options = result_.manifest.options;
    if (options.grpc.port == 0 && !options.discovery.registry && result_.manifest.nodes.size() > 1) {
      Add(LineOfField("router.grpc"), "router.grpc",
          "ranks of other nodes must know the port, or find routers in a registry");
    }
    if (routers < 2) return;
    for (const auto& [path, address] :
         {std::pair("router.http", options.http), std::pair("router.grpc", options.grpc)}) {
      if (IsLoopbackHost(address.host) || IsWildcardHost(address.host)) continue;
      Add(LineOfField(path), path,
          absl::StrCat("several nodes have a router, and ", address.host,
                       " is the address of one machine: expected 0.0.0.0:", address.port));
    }
  }

  ParsedManifest result_;
  std::map<std::string, const Field*> table_;  // by path
  std::set<std::string> sections_;
  std::map<std::string, int> lines_;  // of what was given, by canonical path
};

}  // namespace

void ManifestNode::Declare(Fields& fields) {
  fields.Text("address", &address, "Address of this machine, which the others reach it by. Required.");
  fields.Bool("router", &router, "Whether a router runs here; any number of nodes may have one.");
  fields.Integer("inference_ranks", &inference_ranks, "Inference ranks that run here.", 0, 64);
  fields.Integer("prefill_ranks", &prefill_ranks, "Inference ranks for prefill alone that run here.", 0, 64);
  fields.Integer("decode_ranks", &decode_ranks, "Inference ranks for decode alone that run here.", 0, 64);
  fields.Integer("cache_ranks", &cache_ranks, "Cache ranks that run here.", 0, 64);
  DeclareDeviceField(fields, "device", &device, "Where this node's inference ranks compute; cuda:N,M names GPUs.");
  DeclareDeviceField(fields, "cache_device", &cache_device,
                     "Where this node's cache ranks score keys and select rows; each takes the next GPU.");
}

void DeployOptions::Declare(Fields& fields) {
  fields.Text("name", &name, "What rendered objects are called; also the namespace in Kubernetes.");
  fields.Text("image", &image, "Container image with the program at /usr/local/bin/winnow.");
  fields.Text("model_path", &model_path,
              "Folder of the model on the machines that run containers or units. Empty = model.path.");
  DeclareRegistry(fields, &registry,
                  "Registry at the address that containers and jobs of Slurm reach it by. Empty = the manifest's.");
  fields.Integer("cpus", &cpus, "Cores of each rank: requested and, in containers, the limit. 0 = no limit.", 0, 1024);
  fields.Bytes(
      "memory", &memory_bytes,
      "Memory that each rank may take: requested and the limit. 0 = what `winnow plan` adds up to for it, with "
      "an eighth of that and 256 MiB of headroom; no limit for ranks on GPUs.");
}

absl::StatusOr<UpOptions> Manifest::OptionsOf(const std::string& node) const {
  std::vector<std::string> names;
  for (const ManifestNode& each : nodes) names.push_back(each.name);
  if (nodes.empty() && node.empty()) return options;
  if (nodes.empty()) return absl::InvalidArgumentError("the manifest has no nodes: leave --node out");
  const std::string known = absl::StrJoin(names, ", ");
  if (node.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the manifest has several nodes: say with --node which one this is (", known, ")"));
  }
  const auto own =
      std::find_if(nodes.begin(), nodes.end(), [&](const ManifestNode& each) { return each.name == node; });
  if (own == nodes.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the manifest has no node ", node, " (", known, ")"));
  }
  UpOptions part = options;
  part.inference_ranks = own->inference_ranks;
  part.prefill_ranks = own->prefill_ranks;
  part.decode_ranks = own->decode_ranks;
  part.cache_ranks = own->cache_ranks;
  part.device = own->device;
  part.cache_device = own->cache_device;
  part.part.host = own->address;
  part.part.has_router = own->router;
  for (const ManifestNode& each : nodes) {
    part.part.all_cache_ranks += each.cache_ranks;
    part.part.all_decoding_ranks += each.inference_ranks + each.decode_ranks;
    if (each.router && each.name != node && options.grpc.port != 0) {
      part.part.routers.push_back({each.address, options.grpc.port});
    }
  }
  for (auto before = nodes.begin(); before != own; ++before) {
    part.part.first_router += before->router ? 1 : 0;
    part.part.first_inference += before->inference_ranks;
    part.part.first_prefill += before->prefill_ranks;
    part.part.first_decode += before->decode_ranks;
    part.part.first_cache += before->cache_ranks;
  }
  // Others come to this machine: what would listen on loopback listens where they reach it.
  for (HostPort* address : {&part.grpc, &part.metrics}) {
    if (IsLoopbackHost(address->host)) address->host = own->address;
  }
  return part;
}

std::string ManifestError::ToString(std::string_view source) const {
  return absl::StrCat(AbslSv(source), line > 0 ? absl::StrCat(":", line) : "", ": ", field.empty() ? "" : field + ": ",
                      message);
}

ParsedManifest ParseManifest(const std::string& yaml) {
  return Parser().Parse(yaml);
}

absl::StatusOr<Manifest> LoadManifest(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) return absl::NotFoundError(absl::StrCat("cannot read the manifest ", path));
  ParsedManifest parsed = ParseManifest(text.str());
  if (parsed.errors.empty()) return std::move(parsed.manifest);
  std::vector<std::string> lines;
  for (const ManifestError& error : parsed.errors) lines.push_back(error.ToString(path));
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

}  // namespace winnow
