# The scheduler on a virtual clock.
winnow_library(bench_serving
  SRCS serving/block_reads.cc serving/h200_costs.cc serving/ladder.cc serving/replay.cc serving/serving_system.cc serving/virtual_rank.cc
       serving/workload.cc
  DEPS absl::str_format cache_rank common_base inference_rank common_json)

add_executable(serving_ladder serving_ladder.cc)
target_link_libraries(serving_ladder PRIVATE winnow_flags bench_serving)
