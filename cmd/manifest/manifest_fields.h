#pragma once
#include <span>
#include <string>
#include <string_view>

namespace winnow {

// Where an option of `winnow up` stands in a manifest: "cache.memory" for --cache-memory.
struct ManifestField {
  std::string_view path;    // "section.field", or a name at the top
  std::string_view option;  // of `winnow up`
};

// Every option of `winnow up` that describes a cluster, in the order in which documents show it.
std::span<const ManifestField> ManifestFields();

// What the sections are about, for the schema.
struct ManifestSection {
  std::string_view name;
  std::string_view help;
};
std::span<const ManifestSection> ManifestSections();

}  // namespace winnow
