#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

// One #include "..." of a source file; paths are relative to the root of the tree.
struct Include {
  std::string file;
  int line = 0;
  std::string target;
};

// Sources of one tree, as text.
struct SourceFile {
  std::string path;
  std::string text;
};

// Every *.h, *.cc, *.cu and *.cuh below the folders of the project under `root`, sorted by path.
std::vector<SourceFile> ReadSources(const std::filesystem::path& root);

// Its #include "..." lines; those in angle brackets are not looked at.
std::vector<Include> IncludesOf(const SourceFile& source);

// The folder that a rule is for: the file's own, or one above it. "" for a file at the root.
std::string ModuleOf(std::string_view path);

// Why `include` is not allowed; empty when it is.
std::string BrokenRule(const Include& include);

// A cycle between modules as "a -> b -> a"; empty when there is none.
std::string FindCycle(const std::map<std::string, std::set<std::string>>& folders);

}  // namespace winnow
