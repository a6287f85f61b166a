#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "common/base/check.h"
#include "kernels/cuda/device/confined_stream.h"
#include "kernels/cuda/matmul/matmul_forms.cuh"
#include "kernels/cuda/matmul/matmul_pack.h"
#include "kernels/cuda/matmul/matmul_prefill.h"

namespace winnow::device {
namespace {

constexpr size_t kLibraryBytes = size_t{32} << 20;  // of the workspace; what NVIDIA advises for Hopper
// Weights that are not bf16 are unpacked to it in slices of output features. 2,048 of them fill 97 % of the tiles of
// 132 multiprocessors at any multiple of 2,048 rows.
constexpr size_t kUnpackedBytes = size_t{80} << 20;
constexpr int kSliceOut = 2048;
constexpr int kSliceStep = kCodeUnit;

// Algorithms are asked for as if there were this many rows, whatever their number: a row then goes through the same
// tiles in any chunk.
constexpr int kPlannedRows = 2048;

struct Product {
  int out_features;
  int in_features;
  int64_t x_stride;
  int64_t y_stride;
  bool y_is_bf16;
  auto operator<=>(const Product&) const = default;
};

// y^T [out, rows] = W [out, in] x^T [in, rows] in the column-major terms of the library.
struct Layouts {
  Layouts(const Product& product, int num_rows) {
    const cudaDataType_t y_type = product.y_is_bf16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasLtMatrixLayoutInit(&weight, CUDA_R_16BF, product.in_features, product.out_features, product.in_features);
    cublasLtMatrixLayoutInit(&x, CUDA_R_16BF, product.in_features, num_rows, product.x_stride);
    cublasLtMatrixLayoutInit(&y, y_type, product.out_features, num_rows, product.y_stride);
    cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
  }
  cublasLtMatrixLayoutOpaque_t weight, x, y;
  cublasLtMatmulDescOpaque_t operation;
};

class CublasLtPlans final : public PrefillPlans {
 public:
  CublasLtPlans() { WINNOW_CHECK(cublasLtCreate(&handle_) == CUBLAS_STATUS_SUCCESS); }
  ~CublasLtPlans() override { cublasLtDestroy(handle_); }

  void Multiply(Stream stream, const Product& product, int num_rows, const void* x, const void* weight, bool accumulate,
                void* y, void* workspace) {
    Layouts layouts(product, num_rows);
    const auto multiply = [&] {
      const float one = 1, beta = accumulate ? 1 : 0;
      return cublasLtMatmul(handle_, &layouts.operation, &one, weight, &layouts.weight, x, &layouts.x, &beta, y,
                            &layouts.y, y, &layouts.y, &AlgorithmOf(product), workspace, kLibraryBytes, stream);
    };
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    // Blocks that stay until all tiles are done are then as many as find room at once. The tiles are the same.
    if (const int32_t multiprocessors = MultiprocessorsOf(stream); multiprocessors > 0) {
      SetMultiprocessors(layouts, multiprocessors);
      status = multiply();
      SetMultiprocessors(layouts, 0);
    }
    if (status != CUBLAS_STATUS_SUCCESS) status = multiply();
    WINNOW_CHECK(status == CUBLAS_STATUS_SUCCESS);
  }

 private:
  // 0: all.
  static void SetMultiprocessors(Layouts& layouts, int32_t number) {
    cublasLtMatmulDescSetAttribute(&layouts.operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &number, sizeof(number));
  }

  const cublasLtMatmulAlgo_t& AlgorithmOf(const Product& product) {
    const auto known = algorithms_.find(product);
    if (known != algorithms_.end()) return known->second;
    Layouts layouts(product, kPlannedRows);
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulPreferenceInit(&preference);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kLibraryBytes});
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});  // no split k
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{16});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{16});
    const uint32_t y_alignment = product.y_stride % 8 == 0 ? 16 : product.y_is_bf16 ? 2 : 4;
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, &layouts.operation, &layouts.weight, &layouts.x, &layouts.y, &layouts.y,
                                       &preference, 1, &result, &found);
    WINNOW_CHECK(status == CUBLAS_STATUS_SUCCESS && found == 1);
    return algorithms_.emplace(product, result.algo).first->second;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<Product, cublasLtMatmulAlgo_t> algorithms_;
};

// Output features [first, first + count), `first` a multiple of kSliceStep.
DeviceMatrix RowsOf(const DeviceMatrix& matrix, int first, int count) {
  DeviceMatrix rows = matrix;
  rows.out_features = count;
  VisitPackedForm(matrix.dtype, matrix.group_size, [&](auto form) {
    using Form = decltype(form);
    rows.data = static_cast<const char*>(matrix.data) + Form::PackedBytes(first, matrix.in_features);
    rows.scales += Form::ScaleBytes(first, matrix.in_features) / sizeof(float);
  });
  return rows;
}

}  // namespace

std::unique_ptr<PrefillPlans> OpenPrefillPlans() {
  return std::make_unique<CublasLtPlans>();
}

size_t PrefillWorkspaceBytes(int) {
  return kLibraryBytes + kUnpackedBytes;
}

void PrefillMatmul(Stream stream, const PrefillMatmulParams& params) {
  auto& plans = static_cast<CublasLtPlans&>(*params.plans);
  const DeviceMatrix& weight = params.weight;
  Product product = {.out_features = weight.out_features,
                     .in_features = weight.in_features,
                     .x_stride = params.x_stride,
                     .y_stride = params.y_stride,
                     .y_is_bf16 = params.y_dtype == Dtype::kBf16};
  if (weight.dtype == Dtype::kBf16) {
    plans.Multiply(stream, product, params.num_rows, params.x, weight.data, params.accumulate, params.y,
                   params.workspace);
    return;
  }
  void* const unpacked = static_cast<char*>(params.workspace) + kLibraryBytes;
  const int slice =
      std::min<int64_t>(kSliceOut, kUnpackedBytes / (int64_t{2} * weight.in_features) / kSliceStep * kSliceStep);
  const size_t y_element_bytes = product.y_is_bf16 ? 2 : 4;
  for (int out = 0; out < weight.out_features; out += slice) {
    product.out_features = std::min(slice, weight.out_features - out);
    UnpackMatrix(stream, RowsOf(weight, out, product.out_features), unpacked);
    plans.Multiply(stream, product, params.num_rows, params.x, unpacked, params.accumulate,
                   static_cast<char*>(params.y) + out * y_element_bytes, params.workspace);
  }
}

}  // namespace winnow::device
