#include "tests/include_graph.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <sstream>

namespace winnow {
namespace {

constexpr std::array<std::string_view, 11> kFolders = {"common",         "kernels", "transport", "model", "cache_rank",
                                                       "inference_rank", "router",  "clients",   "tools", "cmd",
                                                       "engine"};
constexpr std::string_view kTests = "tests";

struct Rule {
  std::string_view module;  // a folder, with those below it that have no rule of their own
  // Modules it may include beside itself; "common/*" stands for all modules of common, "*" for everything.
  std::vector<std::string_view> allowed;
};

// The project's architecture, lowest first within each folder. A new folder of common/ or of a process belongs to no
// module until someone decides here what it may use.
const std::vector<Rule>& Rules() {
  static const std::vector<Rule> rules = {
      {"common/base", {}},
      {"common/config", {"common/base"}},
      {"common/log", {"common/base"}},
      {"common/model", {"common/base"}},
      {"common/selection", {"common/base"}},
      {"common/timeline", {"common/base"}},
      {"common/tls", {"common/base"}},
      {"common/tracing", {"common/base", "common/config"}},
      {"common/tokenizer", {"common/base"}},
      {"common/grammar", {"common/base", "common/tokenizer"}},
      {"common/json_schema", {"common/base", "common/grammar", "common/tokenizer"}},
      {"common/metrics", {"common/base", "common/config"}},
      {"common/rpc", {"common/base", "common/config", "common/log", "common/timeline", "common/tls", "common/tracing"}},
      {"common/discovery", {"common/base", "common/config", "common/rpc", "common/tls"}},

      {"kernels", {"common/base"}},
      {"kernels/cpu", {"common/base", "kernels"}},
      // What hosts see of a GPU's kernels names no vendor; the folder of one is a plugin that is loaded.
      {"kernels/device", {"common/base", "kernels"}},
      {"kernels/device/params", {"common/base", "kernels", "kernels/device"}},
      {"kernels/plugin", {"common/base", "kernels", "kernels/device", "kernels/device/params"}},
      {"kernels/cuda/device", {"common/base", "kernels/device", "kernels/device/params"}},
      // Tiles of latents are those of a step's attention.
      {"kernels/cuda/prefill",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/attention",
        "kernels/cuda/device", "kernels/cuda/latent"}},
      {"kernels/cuda/select",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/device"}},
      {"kernels/cuda/rows",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/device",
        "kernels/cuda/select"}},
      {"kernels/cuda/collective",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/device",
        "kernels/cuda/rows"}},
      {"kernels/cuda/attention",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/device",
        "kernels/cuda/latent", "kernels/cuda/matmul", "kernels/cuda/rows"}},
      {"kernels/cuda/matmul",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/collective",
        "kernels/cuda/device"}},
      {"kernels/cuda/latent",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/device",
        "kernels/cuda/matmul"}},
      {"kernels/cuda/indexer",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/attention",
        "kernels/cuda/device", "kernels/cuda/latent", "kernels/cuda/matmul", "kernels/cuda/select"}},
      {"kernels/cuda/step",
       {"common/base", "kernels", "kernels/device", "kernels/device/params", "kernels/cuda/attention",
        "kernels/cuda/device", "kernels/cuda/rows", "kernels/cuda/select"}},
      {"kernels/cuda", {"common/base", "kernels/*"}},

      // Frames over host memory know no device; payloads over GPUs know both, which do not know each other.
      {"transport/wire", {"common/base"}},
      {"transport/seal", {"common/base", "transport/wire"}},
      {"transport", {"common/base", "transport/seal", "transport/wire"}},
      {"transport/inproc", {"common/base", "transport", "transport/wire"}},
      {"transport/shm", {"common/base", "transport", "transport/wire"}},
      {"transport/ucx", {"common/base", "transport", "transport/wire"}},
      {"transport/peer", {"common/base", "kernels/*", "transport", "transport/shm", "transport/wire"}},
      {"transport/nccl", {"common/base", "kernels/*", "transport", "transport/peer", "transport/wire"}},

      {"model/weights", {"common/*", "kernels/*"}},
      {"model", {"common/*", "kernels/*", "model/weights"}},
      {"model/device", {"common/*", "kernels/*", "model", "model/weights"}},

      {"cache_rank/index", {"common/*", "kernels/*"}},
      {"cache_rank/select/scorer", {"common/*", "kernels/*", "cache_rank/index"}},
      {"cache_rank/select/policy", {"common/*", "kernels/*", "cache_rank/select/scorer"}},
      {"cache_rank/select/predictor", {"common/*", "kernels/*", "model/weights"}},
      {"cache_rank/store",
       {"common/*", "kernels/*", "transport/wire", "cache_rank/index", "cache_rank/select/policy",
        "cache_rank/select/predictor", "cache_rank/select/scorer"}},
      {"cache_rank/select/host",
       {"common/*", "kernels/*", "transport/wire", "cache_rank/index", "cache_rank/select/policy",
        "cache_rank/select/predictor", "cache_rank/select/scorer"}},
      {"cache_rank/select/verify",
       {"common/*", "kernels/*", "cache_rank/select/host", "cache_rank/select/policy", "cache_rank/select/scorer"}},
      {"cache_rank", {"common/*", "cache_rank/select/verify"}},
      {"cache_rank/stream",
       {"common/*", "kernels/*", "transport", "transport/wire", "cache_rank", "cache_rank/select/host",
        "cache_rank/select/verify", "cache_rank/store"}},
      {"cache_rank/step",
       {"common/*", "kernels/*", "transport", "transport/wire", "cache_rank", "cache_rank/index",
        "cache_rank/select/host", "cache_rank/select/policy", "cache_rank/select/predictor", "cache_rank/select/scorer",
        "cache_rank/select/verify", "cache_rank/store", "cache_rank/stream"}},
      {"cache_rank/replica", {"common/*", "kernels/*", "cache_rank", "cache_rank/step", "cache_rank/store"}},
      {"cache_rank/service",
       {"common/*", "kernels/*", "model/*", "transport/*", "cache_rank", "cache_rank/replica", "cache_rank/step",
        "cache_rank/store"}},
      {"cache_rank/store/device",
       {"common/*", "kernels/*", "model/*", "cache_rank/select/predictor", "cache_rank/store"}},
      {"cache_rank/select/device",
       {"common/*", "kernels/*", "model/*", "cache_rank/select/host", "cache_rank/select/predictor", "cache_rank/step",
        "cache_rank/store", "cache_rank/store/device"}},
      {"cache_rank/step/device",
       {"common/*", "kernels/*", "model/*", "transport/peer", "transport/wire", "cache_rank",
        "cache_rank/select/device", "cache_rank/select/predictor", "cache_rank/step", "cache_rank/store",
        "cache_rank/store/device", "cache_rank/stream"}},

      {"inference_rank", {"common/*"}},
      {"inference_rank/memory", {"common/*", "kernels/*", "model/*", "transport/wire"}},
      {"inference_rank/links", {"common/*", "model/*", "transport", "transport/wire", "inference_rank"}},
      {"inference_rank/sequence",
       {"common/*", "kernels/*", "model/*", "transport", "transport/wire", "inference_rank", "inference_rank/links",
        "inference_rank/memory"}},
      {"inference_rank/scheduler", {"common/*", "inference_rank/memory", "inference_rank/sequence"}},
      {"inference_rank/step",
       {"common/*", "kernels/*", "model/*", "transport", "transport/wire", "inference_rank", "inference_rank/links",
        "inference_rank/memory", "inference_rank/sequence"}},
      {"inference_rank/local",
       {"common/*", "kernels/*", "model/*", "cache_rank/select/device", "cache_rank/select/predictor",
        "cache_rank/store/device", "inference_rank/step"}},
      {"inference_rank/backend",
       {"common/*", "kernels/*", "model/*", "transport/peer", "transport/wire", "inference_rank/local",
        "inference_rank/memory", "inference_rank/step"}},
      {"inference_rank/engine",
       {"common/*", "kernels/*", "model/*", "transport", "transport/wire", "inference_rank", "inference_rank/links",
        "inference_rank/memory", "inference_rank/scheduler", "inference_rank/sequence", "inference_rank/step"}},
      {"inference_rank/service",
       {"common/*", "kernels/*", "model/*", "transport", "transport/wire", "inference_rank", "inference_rank/backend",
        "inference_rank/engine", "inference_rank/links", "inference_rank/memory", "inference_rank/scheduler",
        "inference_rank/sequence"}},

      {"router/text", {"common/*"}},
      {"router/chat_output", {"common/*"}},
      {"router/constraint", {"common/*", "router/chat_output"}},
      {"router/http", {"common/*"}},
      {"router/page", {"common/*", "router/http"}},
      {"router/tasks", {"common/*"}},
      {"router/membership", {"common/*", "router/tasks"}},
      {"router/keys", {"common/*"}},
      {"router/dispatch", {"common/*", "router/membership", "router/tasks"}},
      {"router/generation",
       {"common/*", "router/chat_output", "router/constraint", "router/dispatch", "router/keys", "router/membership",
        "router/tasks", "router/text"}},
      {"router/openai/json", {"common/*", "router/generation", "router/http"}},
      {"router/openai/request",
       {"common/*", "router/chat_output", "router/constraint", "router/generation", "router/openai/json",
        "router/text"}},
      {"router/openai/response", {"common/*", "router/chat_output", "router/generation", "router/openai/json"}},
      {"router/openai",
       {"common/*", "router/generation", "router/http", "router/keys", "router/openai/json", "router/openai/request",
        "router/openai/response"}},
      {"router/admin", {"common/*", "router/dispatch", "router/keys", "router/membership", "router/tasks"}},
      {"router",
       {"common/*", "router/admin", "router/chat_output", "router/dispatch", "router/generation", "router/http",
        "router/keys", "router/membership", "router/openai", "router/openai/json", "router/page", "router/tasks",
        "router/text"}},

      {"clients/cpp", {"common/base", "common/rpc"}},

      {"tools/load", {"common/*", "clients/cpp"}},
      {"tools/batch", {"common/base", "tools/load"}},
      {"tools/machine", {"common/base", "kernels/*"}},
      {"tools/plan", {"common/*"}},
      {"tools/timeline", {"common/*"}},
      {"tools/profile", {"common/*", "router/*"}},
      {"tools/engine", {"common/*", "kernels/*", "model/*", "cache_rank/*", "tools/load"}},
      {"tools/bench", {"*"}},
      // Time, then messages, then processes, then what happens to them.
      {"tools/simulation/runtime", {"common/base"}},
      {"tools/simulation/network", {"common/*", "transport/*", "tools/simulation/runtime"}},
      {"tools/simulation/cluster",
       {"common/*", "kernels/*", "transport/*", "model/*", "cache_rank/*", "inference_rank/*", "router/*",
        "tools/simulation/network", "tools/simulation/runtime"}},
      {"tools/simulation",
       {"common/*", "cache_rank/*", "inference_rank/*", "router/*", "tools/simulation/cluster",
        "tools/simulation/network", "tools/simulation/runtime"}},

      {"cmd/client", {"common/*", "clients/cpp"}},
      {"cmd/command", {"common/*"}},
      {"cmd/admin", {"common/*"}},
      // Where processes run, processes, the load and the faults, which do not know each other, then what is concluded.
      {"cmd/chaos/sandbox", {"common/*", "cmd/up"}},
      {"cmd/chaos/cluster", {"common/*", "cmd/status", "cmd/up", "cmd/chaos/sandbox"}},
      {"cmd/chaos/load", {"common/*", "tools/load", "cmd/chaos/cluster"}},
      {"cmd/chaos/faults", {"common/*", "cmd/admin", "cmd/up", "cmd/chaos/cluster", "cmd/chaos/sandbox"}},
      {"cmd/chaos/modes", {"common/*", "tools/load", "cmd/chaos/cluster", "cmd/chaos/faults", "cmd/chaos/load"}},
      {"cmd/chaos", {"common/*", "tools/load", "cmd/chaos/faults", "cmd/chaos/modes"}},
      {"cmd/chat", {"common/*", "clients/cpp"}},
      {"cmd/terminal", {"common/*"}},
      {"cmd/connection", {"common/*", "cmd/client", "cmd/terminal"}},
      {"cmd/doctor", {"common/*", "kernels/*"}},
      {"cmd/role", {"common/*", "kernels/*", "transport/*", "model/*", "cache_rank/*", "inference_rank/*", "router/*"}},
      {"cmd/up", {"common/*", "cache_rank/*", "cmd/role"}},
      {"cmd/manifest", {"common/*", "cmd/role", "cmd/up"}},
      {"cmd/render", {"common/*", "cmd/manifest", "cmd/plan", "cmd/role", "cmd/up"}},
      {"cmd/plan",
       {"common/*", "kernels/*", "model/*", "cache_rank/*", "inference_rank/*", "tools/machine", "tools/plan",
        "cmd/role", "cmd/up"}},
      {"cmd/status", {"common/*", "cmd/up"}},
      {"cmd",
       {"common/*",      "kernels/*",      "transport/*",    "model/*",      "cache_rank/*",    "inference_rank/*",
        "router/*",      "clients/cpp",    "tools/batch",    "tools/engine", "tools/load",      "tools/plan",
        "tools/profile", "tools/timeline", "cmd/admin",      "cmd/chaos",    "cmd/chaos/modes", "cmd/chat",
        "cmd/client",    "cmd/command",    "cmd/connection", "cmd/doctor",   "cmd/manifest",    "cmd/plan",
        "cmd/render",    "cmd/role",       "cmd/status",     "cmd/terminal", "cmd/up"}},
      // A cluster in one process.
      {"engine",
       {"common/*", "transport/*", "cache_rank/*", "inference_rank/*", "router/*", "clients/cpp", "cmd/role"}},
      {"tests", {"*"}},
  };
  return rules;
}

// Folders whose own files are a module of their own while each folder below needs a rule: a new one is somebody's
// decision.
constexpr std::array<std::string_view, 7> kSplitFolders = {"common",         "transport", "model", "cache_rank",
                                                           "inference_rank", "router",    "tools"};

std::string_view TopFolder(std::string_view path) {
  const size_t slash = path.find('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

bool IsProjectFolder(std::string_view folder) {
  return folder == kTests || std::find(kFolders.begin(), kFolders.end(), folder) != kFolders.end();
}

const Rule* FindRule(std::string_view module) {
  const auto rule = std::find_if(Rules().begin(), Rules().end(), [&](const Rule& r) { return r.module == module; });
  return rule == Rules().end() ? nullptr : &*rule;
}

bool IsSource(const std::filesystem::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

std::vector<SourceFile> ReadSources(const std::filesystem::path& root) {
  std::vector<SourceFile> sources;
  std::vector<std::string_view> folders(kFolders.begin(), kFolders.end());
  folders.push_back(kTests);
  for (const std::string_view folder : folders) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      sources.push_back({std::filesystem::relative(entry.path(), root).generic_string(), ReadFile(entry.path())});
    }
  }
  std::sort(sources.begin(), sources.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return sources;
}

std::vector<Include> IncludesOf(const SourceFile& source) {
  static const std::regex directive("^\\s*#\\s*include\\s*\"([^\"]+)\"");
  std::vector<Include> includes;
  std::istringstream lines(source.text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, directive)) includes.push_back({source.path, number, match[1]});
  }
  return includes;
}

std::string ModuleOf(std::string_view path) {
  const std::string_view top = TopFolder(path);
  std::string_view folder = path.substr(0, path.rfind('/') == std::string_view::npos ? 0 : path.rfind('/'));
  const std::string whole(folder);
  for (; !folder.empty();
       folder = folder.substr(0, folder.rfind('/') == std::string_view::npos ? 0 : folder.rfind('/'))) {
    if (FindRule(folder) == nullptr) continue;
    const bool is_split = std::find(kSplitFolders.begin(), kSplitFolders.end(), folder) != kSplitFolders.end();
    return std::string(is_split ? std::string_view(whole) : folder);
  }
  return whole.empty() ? std::string(top) : whole;
}

std::string BrokenRule(const Include& include) {
  if (TopFolder(include.target) == "winnow") {  // generated from proto/
    const std::string from = ModuleOf(include.file);
    if (TopFolder(include.file) == "kernels" || from == "common/base") return from + " knows no messages";
    return {};
  }
  const std::string from = ModuleOf(include.file), to = ModuleOf(include.target);
  if (!IsProjectFolder(TopFolder(include.target))) {
    // Libraries are included as <...> or "library/header.h"; a path without a folder is relative to the including file.
    if (to.empty() || include.target.starts_with("..")) return "includes are relative to the root of the tree";
    return {};
  }
  const Rule* const rule = FindRule(from);
  if (rule == nullptr) return "tests/include_graph.cc does not say what " + from + " may include";
  if (from == to) return {};
  for (const std::string_view allowed : rule->allowed) {
    if (allowed == "*" || allowed == to) return {};
    if (allowed.ends_with("/*") && TopFolder(to + "/") == allowed.substr(0, allowed.size() - 2)) return {};
  }
  std::string names;
  for (const std::string_view allowed : rule->allowed) names += (names.empty() ? "" : ", ") + std::string(allowed);
  return from + " may include " + (names.empty() ? "nothing else" : "only " + names) + ", not " + to;
}

std::string FindCycle(const std::map<std::string, std::set<std::string>>& folders) {
  std::vector<std::string> path;
  std::set<std::string> done;
  const std::function<std::string(const std::string&)> visit = [&](const std::string& folder) -> std::string {
    const auto seen = std::find(path.begin(), path.end(), folder);
    if (seen != path.end()) {
      std::string cycle;
      for (auto step = seen; step != path.end(); ++step) cycle += *step + " -> ";
      return cycle + folder;
    }
    if (done.contains(folder)) return {};
    path.push_back(folder);
    if (const auto edges = folders.find(folder); edges != folders.end()) {
      for (const std::string& next : edges->second) {
        if (std::string cycle = visit(next); !cycle.empty()) return cycle;
      }
    }
    path.pop_back();
    done.insert(folder);
    return {};
  };
  for (const auto& [folder, edges] : folders) {
    if (std::string cycle = visit(folder); !cycle.empty()) return cycle;
  }
  return {};
}

}  // namespace winnow
