#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tools/bench/engine_alone.h"
#include "tools/bench/stream_load.h"

namespace winnow {

// What the sections of serve_bench have in common: the model, the engine alone as a yardstick, and clusters to start.
class ServeBench {
 public:
  // `patience_s`: how long to wait, in each section, for other processes to leave the machine alone.
  // `selections`: what the section "hidden" compares; empty: presets of its own choice.
  ServeBench(std::string model_dir, bool quick, double patience_s, std::vector<std::string> selections,
             std::unique_ptr<EngineAlone> engine)
      : model_dir_(std::move(model_dir)),
        quick_(quick),
        selections_(std::move(selections)),
        patience_per_section_s_(patience_s),
        engine_(std::move(engine)) {}

  bool quick() const { return quick_; }
  const std::vector<std::string>& selections() const { return selections_; }
  void BeginSection() { patience_s_ = patience_per_section_s_; }
  EngineAlone& engine() { return *engine_; }
  const std::string& model_dir() const { return model_dir_; }
  // Returns in a quiet moment, or when this section's patience is used up.
  void AwaitQuiet(const std::vector<pid_t>& ours);

  // A cluster with that preset and budget (0: none named), ready and warmed up with one request.
  absl::StatusOr<std::unique_ptr<e2e::Cluster>> Start(const std::string& selection, uint32_t budget,
                                                      const std::vector<std::string>& further_flags = {});

  struct Served {
    DecodeRate rate;
    double time_to_first_token_s = 0;  // fastest
    double hit_ratio = 0, captured_mass = 0;
    double streamed_bytes_per_token = 0;
    double others = 0;  // share of one core that other processes took meanwhile
  };
  // `batch` streams from prompts of `context` tokens, as often as is worth it; prompts differ between streams. Runs
  // that other processes disturbed are repeated while there is patience, and left out if there are better ones.
  absl::StatusOr<Served> Serve(const e2e::Cluster& cluster, uint32_t context, int batch, int max_tokens);

  // The engine's figures, taken in a quiet moment if there is one.
  double EngineDecodeTokensPerSecond(int batch);
  double EnginePrefillTokensPerSecond(uint32_t context);

  // Tokens/s if a step took only the reading of the weights and of that many rows of each sequence, at the speed at
  // which all cores read a region of that size.
  double MemoryLimit(int batch, double rows);
  // The same for a selection that reads every key once and then attends `rows`.
  double MemoryLimitWithKeys(int batch, double context, double rows);

 private:
  struct Run {
    std::vector<TimedStream> streams;
    double others = 0;
  };

  double TokensPerSecondToRead(int batch, double bytes_per_sequence);

  const std::string model_dir_;
  const bool quick_;
  const std::vector<std::string> selections_;
  const double patience_per_section_s_;
  double patience_s_ = 0;  // left in this section
  const std::unique_ptr<EngineAlone> engine_;
  std::map<size_t, double> read_s_;  // by MiB: the fastest seen
};

// Each prints one table.
absl::Status DecodeSection(ServeBench& bench);     // dense decode through HTTP, beside the engine alone
absl::Status SelectionSection(ServeBench& bench);  // what choosing the rows costs
absl::Status HiddenSection(ServeBench& bench);     // what of it is not hidden behind compute, on a core per rank
absl::Status ContextSection(ServeBench& bench);    // step time against context length
absl::Status PrefillSection(ServeBench& bench);    // prompt tokens/s to the first token
absl::Status BesideSection(ServeBench& bench);     // time between tokens beside a long prompt
absl::Status ParallelSection(ServeBench& bench);   // eight sequences of 4k

}  // namespace winnow
