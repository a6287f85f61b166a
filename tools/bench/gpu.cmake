add_executable(winnow-gpu-check
  gpu/attention_bench.cc
  gpu/attention_section.cc
  gpu/beside_section.cc
  gpu/checks/batch_selector_check.cc
  gpu/checks/cache_append_check.cc
  gpu/cache_bench.cc
  gpu/checks/assign_slots_check.cc
  gpu/checks/cache_flag_check.cc
  gpu/checks/cache_gpu.cc
  gpu/checks/cache_gpu_reference.cc
  gpu/checks/cache_host_check.cc
  gpu/checks/cache_move_check.cc
  gpu/checks/cache_peer_check.cc
  gpu/cache_section.cc
  gpu/checks/chunk_sums_check.cc
  gpu/device_selection_bench.cc
  gpu/device_selection_section.cc
  gpu/checks/digest_check.cc
  gpu/elementwise_section.cc
  gpu/engine_section.cc
  gpu/checks/experts_check.cc
  gpu/experts_section.cc
  gpu/gpu_check.cc
  gpu/gpu_context.cc
  gpu/indexer_section.cc
  gpu/latent_attention_section.cc
  gpu/latent_section.cc
  gpu/matmul_section.cc
  gpu/matmul_weights.cc
  gpu/page_units_section.cc
  gpu/prefill_attention_section.cc
  gpu/prefill_beside_section.cc
  gpu/report.cc
  gpu/row_moves_section.cc
  gpu/checks/int8_rows_check.cc
  gpu/checks/page_groups_check.cc
  gpu/checks/row_parts_check.cc
  gpu/checks/select_graph_check.cc
  gpu/checks/selection_checks.cc
  gpu/checks/selection_inputs.cc
  gpu/checks/selection_list_checks.cc
  gpu/checks/selection_reference.cc
  gpu/selection_section.cc
  gpu/serving/serve_answers.cc
  gpu/serving/serve_peers.cc
  gpu/serving/serve_section.cc
  gpu/checks/all_reduce_check.cc
  gpu/tensor_parallel_section.cc
  gpu/transport_section.cc)
target_link_libraries(winnow-gpu-check PRIVATE winnow_flags tools_engine cache_rank_device inference_rank kernels kernels_device tests_e2e tests_support common_json absl::flags absl::flags_parse)
add_dependencies(winnow-gpu-check winnow)
if(TARGET transport_device_test)  # programs that the section transport runs
  add_dependencies(winnow-gpu-check transport_device_test transport_device_process_test transport_device_test_peer)
endif()
if(TARGET winnow_cuda)
  add_dependencies(winnow-gpu-check winnow_cuda)
endif()
add_executable(winnow-link-bench
  gpu/gpu_context.cc
  gpu/links/link_bench.cc
  gpu/links/link_kill.cc
  gpu/links/link_nccl.cc
  gpu/links/link_process.cc
  gpu/links/link_times.cc
  gpu/report.cc)
target_link_libraries(winnow-link-bench PRIVATE winnow_flags kernels_device transport_peer common_json absl::flags absl::flags_parse)
if(TARGET winnow_cuda)
  add_dependencies(winnow-link-bench winnow_cuda)
endif()
# Where there is no GPU it says why and counts as skipped.
add_test(NAME gpu_check COMMAND winnow-gpu-check --bench=false)
set_tests_properties(gpu_check PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 LABELS "gpu;long")
