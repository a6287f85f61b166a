#include "tools/simulation/scenario/planted.h"

namespace winnow::simulation {
namespace {

std::string planted;

}  // namespace

std::vector<std::string> PlantedBugs() {
  return {};
}

bool Plant(const std::string& name) {
  planted = name;
  return false;
}

}  // namespace winnow::simulation
