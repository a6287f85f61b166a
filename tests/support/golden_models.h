#pragma once
#include <ostream>
#include <string>
#include <vector>

namespace winnow {

// A small random checkpoint of an architecture with what a reference implementation in f32 makes of some prompts.
struct GoldenModel {
  std::string name;
  std::string path;  // of the checkpoint
  std::string file;  // of the reference's answers
};

inline void PrintTo(const GoldenModel& model, std::ostream* out) {
  *out << model.name;
}

// Those of supported architectures in the folder `models` below the environment's WINNOW_GOLDEN_DIR; none without it.
std::vector<GoldenModel> GoldenModels();

// The name of a parameterised test: letters, digits and underscores.
std::string TestNameOf(std::string name);

}  // namespace winnow
