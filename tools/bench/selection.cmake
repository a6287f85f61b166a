winnow_library(bench_tasks
  SRCS tasks/filler_text.cc tasks/prompt_file.cc tasks/prompt_generator.cc tasks/task_text.cc
  DEPS common_base common_tokenizer common_json)
target_compile_definitions(bench_tasks PRIVATE WINNOW_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

# What is done with answers: files, statistics, plots.
winnow_library(bench_answers
  SRCS quality/answer_record.cc quality/answer_summary.cc quality/csv.cc quality/paired_statistics.cc
       quality/quality_plots.cc
  DEPS tools_svg_plot common_base absl::str_format)

winnow_library(bench_quality RPC
  SRCS quality/forced_decoder.cc quality/hosted_cache_rank.cc quality/quality_model.cc quality/saved_prompt.cc
       quality/spec_choice.cc
  DEPS absl::cleanup bench_answers cache_rank common_selection common_selection_profile inference_rank router transport_inproc)

if(TARGET tests_e2e)  # for its HTTP client
  add_executable(selection_quality selection_quality.cc quality/quality_options.cc quality/served_answers.cc)
  target_link_libraries(selection_quality PRIVATE bench_quality bench_tasks tests_e2e)
endif()
