#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/up/up_options.h"
#include "common/base/status.h"
#include "common/config/fields.h"

namespace winnow {

// A machine of a cluster over several.
struct ManifestNode {
  std::string name;
  std::string address;
  bool router = false;
  int inference_ranks = 0;
  int prefill_ranks = 0;
  int decode_ranks = 0;
  int cache_ranks = 0;
  DeviceChoice device;
  DeviceChoice cache_device{DeviceChoice::Kind::kCpu, 0};

  // Its fields, but for the name, which is its key in the file.
  void Declare(Fields& fields);
};

// What `winnow deploy render` needs beside what runs.
struct DeployOptions {
  std::string name = "winnow";
  std::string image = "winnow:latest";
  std::string model_path;
  std::optional<RegistryUrl> registry;
  int cpus = 0;
  int64_t memory_bytes = 0;

  void Declare(Fields& fields);
};

// A cluster as one file describes it.
struct Manifest {
  UpOptions options;
  std::vector<ManifestNode> nodes;  // empty: one machine
  DeployOptions deploy;

  // What `winnow up` starts on that node; for a manifest without nodes, the whole with "". INVALID_ARGUMENT when there
  // is no such node, or one must be named.
  absl::StatusOr<UpOptions> OptionsOf(const std::string& node) const;
};

struct ManifestError {
  int line = 0;       // from 1; 0: of the file as a whole
  std::string field;  // "inference.device"; empty where no field is meant
  std::string message;

  // "FILE:12: inference.device: ..."
  std::string ToString(std::string_view source) const;
};

struct ParsedManifest {
  Manifest manifest;
  std::vector<ManifestError> errors;  // all of them, in the order of lines
};

// Reads a manifest (YAML). Every error is found: unknown fields with the nearest name, wrong types, values out of
// range, and fields that contradict each other. Nothing is read beside the text, so that it may be checked anywhere.
ParsedManifest ParseManifest(const std::string& yaml);

// Reads and checks a file. INVALID_ARGUMENT has a line for each error; NOT_FOUND when it cannot be read.
absl::StatusOr<Manifest> LoadManifest(const std::string& path);

}  // namespace winnow
