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

constexpr std::array<std::string_view, 10> kFolders = {"common",     "kernels",        "device_transport", "weights",
                                                       "cache_rank", "inference_rank", "router",           "cmd",
                                                       "tests",      "bench"};

struct Rule {
  std::string_view module;
  // Modules it may include beside itself; "common" stands for all of common, "*" for everything.
  std::vector<std::string_view> allowed;
};

// The project's architecture. A new folder of common/ has no entry until someone decides what it may use.
const std::vector<Rule>& Rules() {
  static const std::vector<Rule> rules = {
      {"common/base", {}},
      {"common/config", {"common/base"}},
      {"common/log", {"common/base"}},
      {"common/metrics", {"common/base", "common/config"}},
      {"common/model", {"common/base"}},
      {"common/rpc", {"common/base", "common/config", "common/log", "common/timeline"}},
      {"common/selection", {"common/base"}},
      {"common/timeline", {"common/base"}},
      {"common/transport", {"common/base"}},
      {"kernels", {"common/base"}},
      // Ways of payloads over GPUs: they know transports and devices, which do not know each other.
      {"device_transport", {"common/base", "common/transport", "kernels"}},
      {"weights", {"common", "kernels"}},
      {"cache_rank", {"common", "kernels", "weights"}},
      {"inference_rank", {"common", "kernels", "weights"}},
      {"router", {"common"}},
      {"cmd", {"common", "kernels", "device_transport", "weights", "cache_rank", "inference_rank", "router"}},
      {"tests", {"*"}},
      {"bench", {"*"}},
  };
  return rules;
}

std::string_view TopFolder(std::string_view path) {
  const size_t slash = path.find('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

bool IsProjectFolder(std::string_view folder) {
  return std::find(kFolders.begin(), kFolders.end(), folder) != kFolders.end();
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
  for (const std::string_view folder : kFolders) {
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
  if (top != "common") return std::string(top);
  const std::string_view below = TopFolder(path.substr(top.size() + 1));
  return below.empty() ? std::string(top) : "common/" + std::string(below);
}

std::string BrokenRule(const Include& include) {
  const std::string from = ModuleOf(include.file), to = ModuleOf(include.target);
  if (to == "winnow") {  // generated from proto/
    if (from == "kernels" || from == "common/base") return from + " knows no messages";
    return {};
  }
  if (!IsProjectFolder(TopFolder(include.target))) {
    // Libraries are included as <...> or "library/header.h"; a path without a folder is relative to the including file.
    if (to.empty() || include.target.starts_with("..")) return "includes are relative to the root of the tree";
    return {};
  }
  const auto rule = std::find_if(Rules().begin(), Rules().end(), [&](const Rule& r) { return r.module == from; });
  if (rule == Rules().end()) return "tests/include_graph.cc does not say what " + from + " may include";
  if (from == to) return {};
  for (const std::string_view allowed : rule->allowed) {
    if (allowed == "*" || allowed == to || (allowed == "common" && TopFolder(include.target) == "common")) return {};
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
