#pragma once
#include <string>
#include <vector>

namespace winnow::simulation {

// Bugs that a simulation can be told to have, so that it can be seen to find them. They sit in functions that the
// linker puts between the callers and the real ones, in the program of the simulation alone.
std::vector<std::string> PlantedBugs();
// False when there is no such bug.
bool Plant(const std::string& name);

}  // namespace winnow::simulation
