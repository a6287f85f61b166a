#pragma once
#include <cstdint>
#include <string>

#include "winnow/v1/identity.pb.h"

namespace winnow {

// Random and never 0: what tells this start of a process from any other.
uint64_t RandomIncarnation();

// An identity with a new incarnation; the address is set once the server listens.
v1::Identity MakeIdentity(const std::string& cluster, v1::Role role, const std::string& rank);

// "inference-0@1f2e3d4c5b6a7988", for logs.
std::string ToString(const v1::Identity& identity);

}  // namespace winnow
