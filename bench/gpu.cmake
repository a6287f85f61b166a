add_executable(winnow-gpu-check
  gpu/attention_bench.cc
  gpu/attention_section.cc
  gpu/cache_section.cc
  gpu/elementwise_section.cc
  gpu/gpu_check.cc
  gpu/gpu_context.cc
  gpu/matmul_section.cc
  gpu/prefill_attention_section.cc
  gpu/report.cc
  gpu/selection_section.cc)
target_link_libraries(winnow-gpu-check PRIVATE winnow_flags kernels kernels_cuda nlohmann_json::nlohmann_json absl::flags absl::flags_parse)
if(TARGET winnow_cuda)
  add_dependencies(winnow-gpu-check winnow_cuda)
endif()
# Where there is no GPU it says why and counts as skipped.
add_test(NAME gpu_check COMMAND winnow-gpu-check --bench=false)
set_tests_properties(gpu_check PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 LABELS gpu)
