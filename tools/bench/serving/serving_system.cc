#include "tools/bench/serving/serving_system.h"

namespace winnow::serving {

std::vector<ServingSystem> Ladder() {
  std::vector<ServingSystem> ladder = {{.name = "dense"}};
  const auto step = [&](const char* name) -> ServingSystem& {
    ladder.push_back(ladder.back());
    ladder.back().name = name;
    return ladder.back();
  };
  step("sparse").sparse = true;
  step("+ offload").offloads = true;
  step("+ gathers").gathers = true;
  step("+ working-set control").controls = true;
  step("+ segmented prefill").segments = true;
  step("+ predicted queries").overlaps = true;
  return ladder;
}

ServingSystem WithoutControl() {
  ServingSystem system = Ladder().back();
  system.name = "the same without working-set control";
  system.controls = false;
  return system;
}

}  // namespace winnow::serving
