#include "tests/support/golden_models.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace winnow {

std::vector<GoldenModel> GoldenModels() {
  const char* directory = std::getenv("WINNOW_GOLDEN_DIR");
  std::vector<GoldenModel> models;
  if (directory == nullptr) return models;
  for (const char* name : {"qwen3-moe", "mixtral", "phi3-longrope-off", "olmo2", "gemma3", "gpt-oss", "deepseek-v3",
                           "deepseek-v32", "glm-moe-dsa"}) {
    const std::string path = std::string(directory) + "/models/" + name;
    if (std::filesystem::exists(path + "/golden.json")) models.push_back({name, path, path + "/golden.json"});
  }
  return models;
}

std::string TestNameOf(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace winnow
