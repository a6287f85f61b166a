#pragma once
#include <string>

namespace winnow {

// A JSON schema (draft 2020-12) of manifests, for editors: made of the fields that the parser reads.
std::string ManifestSchema();

// The fields as rows of a Markdown table, for documents.
std::string ManifestFieldTable();

}  // namespace winnow
