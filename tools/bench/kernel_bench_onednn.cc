#include "tools/bench/kernel_bench_onednn.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <dnnl.hpp>
#include <limits>
#include <vector>

namespace winnow {

double OneDnnMatmulSeconds(int m, int n, int k, Dtype dtype, int num_threads) {
  using Desc = dnnl::memory::desc;
  using Tag = dnnl::memory::format_tag;
  omp_set_num_threads(num_threads);
  const auto type = dtype == Dtype::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const Desc a({m, k}, type, Tag::ab);
  const Desc any({k, n}, type, Tag::any);
  const Desc c({m, n}, dnnl::memory::data_type::f32, Tag::ab);
  const dnnl::matmul::primitive_desc primitive_desc(dnnl::matmul::desc(a, any, c), engine);
  dnnl::memory x(a, engine);
  dnnl::memory w(primitive_desc.weights_desc(), engine);
  dnnl::memory y(c, engine);
  // Zeros are subject to no slow path, and content does not matter to the time.
  for (dnnl::memory* memory : {&x, &w, &y}) {
    auto* bytes = static_cast<char*>(memory->get_data_handle());
    std::fill(bytes, bytes + memory->get_desc().get_size(), 0);
  }
  const dnnl::matmul matmul(primitive_desc);
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 8; ++run) {
    const auto start = std::chrono::steady_clock::now();
    matmul.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
    stream.wait();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace winnow
