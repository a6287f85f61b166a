// The forward pass alone, in one process and without cache rank: prefill and dense decode tokens/s by context length
// and batch size. What a served request loses against it is the cost of everything around: scheduling, data plane,
// HTTP.
//
//   forward_bench MODEL_DIR [--threads N] [--contexts 64,1024,4096,16384] [--batch 1,8] [--seconds 2] [--chunk 512]
#include <cstdio>
#include <string>

#include "tools/bench/engine_alone.h"
#include "tools/bench/numbers.h"
#include "tools/machine/machine_read.h"

namespace winnow {
namespace {

int Run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: %s MODEL_DIR [--threads N] [--contexts LIST] [--batch LIST] [--seconds S] [--chunk N]\n",
                 argv[0]);
    return 2;
  }
  EngineAlone::Options options;
  double seconds = 2;
  std::vector<uint32_t> contexts = {64, 1024, 4096, 16384}, batches = {1, 8};
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--threads") options.threads = std::stoi(value);
    if (flag == "--contexts") contexts = ParseNumbers(value);
    if (flag == "--batch") batches = ParseNumbers(value);
    if (flag == "--seconds") seconds = std::stod(value);
    if (flag == "--chunk") options.chunk_tokens = std::stoul(value);
  }
  const absl::StatusOr<std::unique_ptr<EngineAlone>> loaded = EngineAlone::Load(argv[1], options);
  if (!loaded.ok()) return std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str()), 1;
  EngineAlone& engine = **loaded;

  std::printf("%s, %d threads, a decode step reads %.1f MB of weights; limit: the time to read weights and rows once\n",
              std::string(engine.kernels().name).c_str(), options.threads, engine.weight_bytes() / 1e6);
  std::printf("%8s %6s %14s %14s %14s %14s\n", "context", "batch", "prefill tok/s", "decode tok/s", "limit tok/s",
              "us per step");
  for (uint32_t context : contexts) {
    const double prefill = engine.PrefillSeconds(context, context > 8192 ? 1 : 3);
    for (uint32_t batch : batches) {
      const double step = engine.DecodeStepSeconds(batch, seconds);
      const size_t bytes = engine.weight_bytes() + size_t{batch} * context * engine.layout().token_bytes();
      const double limit = MachineReadSeconds(engine.kernels(), engine.executor(), bytes);
      std::printf("%8u %6u %14.0f %14.0f %14.0f %14.1f\n", context, batch, context / prefill, batch / step,
                  batch / limit, step * 1e6);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::Run(argc, argv);
}
