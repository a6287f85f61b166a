# Target helpers: every library, program and test of the project is declared through one of these, so that flags and the
# include root are set in one place.
find_program(CCACHE ccache)
if(CCACHE)
  # Precompiled headers are cacheable only with these three checks relaxed.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

add_library(winnow_flags INTERFACE)
target_compile_options(winnow_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Werror -pthread>)
target_include_directories(winnow_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)  # clang-tidy knows neither
  # ccache asks for the first where headers are precompiled. The second: to collect garbage below this many KiB costs more time than
  # the memory is worth.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess> $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()

# Of code that need not be fast: tests, commands, the control plane. GCC sees less at -O1, and takes what is assigned for unassigned.
set(winnow_quick_build $<$<CONFIG:Release>:-O1> $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>)

# The sources of a library or test that lie in one folder are compiled as one: a build from nothing spends most of its time on the headers
# and templates that they share. Names in anonymous namespaces are therefore unique in their folder. OFF: each file alone, which is
# quicker where one of them is edited all day; `./run check` reads them so, and thereby sees the includes that one of them lacks.
# A folder may set it to OFF for itself and those below it.
option(WINNOW_UNITY "Compile the sources of a library or test that lie in one folder as one" ON)

# winnow_unity(<target>)   once it has its sources. Those that are generated, that have flags of their own or
# SKIP_UNITY_BUILD_INCLUSION stay apart.
function(winnow_unity target)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(IS_ABSOLUTE source is_generated)
    if(is_generated)
      continue()
    endif()
    cmake_path(GET source PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "in_${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# What most files read is parsed once for all targets. Such headers fit targets of the same kind alone: with -fPIC as libraries or
# -fPIE as programs, and for no instruction set of their own; what they were optimized for does not matter. Sources still include what
# they use, so that the build without precompiled headers (-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON, used for static analysis) works too.
# A folder may set it to OFF for itself and those below it.
option(WINNOW_PRECOMPILE "Let libraries and tests read the same precompiled headers" ON)
set(winnow_common_headers
  <algorithm> <atomic> <chrono> <cstdint> <functional> <map> <memory> <mutex> <optional> <set> <span> <sstream> <string>
  <string_view> <thread> <unordered_map> <utility> <vector> <absl/status/statusor.h> <absl/strings/str_cat.h>
  <absl/strings/str_format.h> <absl/synchronization/mutex.h> <nlohmann/json.hpp>)
# gRPC, and what the files that protoc writes include of protobuf.
set(winnow_rpc_headers
  <grpcpp/grpcpp.h> <google/protobuf/message.h> <google/protobuf/generated_message_reflection.h>
  <google/protobuf/generated_enum_reflection.h> <google/protobuf/repeated_field.h> <google/protobuf/reflection_ops.h>
  <google/protobuf/wire_format.h>)

# winnow_headers(<name> LIBRARY|PROGRAM HEADERS <header>... [DEPS <target>...])   a target that is nothing but these, for
# winnow_precompiled(<target> <name>)
function(winnow_headers name kind)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  set(source ${PROJECT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
  if(kind STREQUAL "LIBRARY")
    add_library(${name} OBJECT EXCLUDE_FROM_ALL ${source})
  else()
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
  endif()
  target_link_libraries(${name} PRIVATE winnow_flags ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

function(winnow_precompiled target headers)
  if(WINNOW_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endif()
endfunction()

# winnow_library(<name> [RPC] [CONTROL] SRCS <file>... DEPS <target>...)   without SRCS: a header-only library. RPC: most of its files
# read gRPC's headers. CONTROL: no request waits for it, so that it need not be fast and the build can be.
function(winnow_library name)
  cmake_parse_arguments(ARG "RPC;CONTROL" "" "SRCS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    target_link_libraries(${name} PUBLIC winnow_flags ${ARG_DEPS})
    if(WINNOW_UNITY)
      winnow_unity(${name})
    endif()
    if(ARG_CONTROL)
      target_compile_options(${name} PRIVATE ${winnow_quick_build})
    endif()
    if(ARG_RPC)
      winnow_precompiled(${name} rpc_headers)
    else()
      winnow_precompiled(${name} library_headers)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE winnow_flags ${ARG_DEPS})
  endif()
endfunction()

# winnow_test(<name> SRCS <file>... DEPS <target>... [LABELS <label>...] [TIMEOUT <seconds>] [ALONE <file>...])   ALONE: sources that
# have a name in common with others of their folder
function(winnow_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS;ALONE" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  if(WINNOW_UNITY)
    set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    winnow_unity(${name})
  endif()
  target_link_libraries(${name} PRIVATE winnow_flags ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  winnow_precompiled(${name} test_headers)
  target_compile_options(${name} PRIVATE ${winnow_quick_build})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# winnow_fuzzer(<name> SRCS <file>... DEPS <target>...)   with -DWINNOW_FUZZERS=ON (and clang) a libFuzzer program; otherwise, where
# inputs are kept in tests/fuzz/corpus/<name>, a test that runs these
function(winnow_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(NOT WINNOW_FUZZERS)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
      return()
    endif()
    add_executable(${name} ${ARG_SRCS} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cc)
    target_link_libraries(${name} PRIVATE winnow_flags ${ARG_DEPS})
    target_compile_options(${name} PRIVATE ${winnow_quick_build})
    add_test(NAME ${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 120)
    return()
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE winnow_flags ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_property(GLOBAL APPEND PROPERTY WINNOW_FUZZER_TARGETS ${name})
endfunction()

# `fuzzers` builds them all and lists their paths in <build>/fuzzers.txt.
function(winnow_fuzzers_target)
  get_property(targets GLOBAL PROPERTY WINNOW_FUZZER_TARGETS)
  set(paths)
  foreach(target IN LISTS targets)
    string(APPEND paths "$<TARGET_FILE:${target}>\n")
  endforeach()
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/fuzzers.txt CONTENT "${paths}")
  add_custom_target(fuzzers DEPENDS ${targets})
endfunction()

# winnow_proto_library(<name> <file.proto>...)   paths relative to proto/; proto_sources only generates, for all of them
function(winnow_proto_library name)
  get_target_property(plugin gRPC::grpc_cpp_plugin LOCATION)
  set(root ${PROJECT_SOURCE_DIR}/proto)
  set(gen ${CMAKE_CURRENT_BINARY_DIR}/gen)
  file(MAKE_DIRECTORY ${gen})
  list(TRANSFORM ARGN PREPEND ${root}/ OUTPUT_VARIABLE all)
  set(sources)
  set(generated)
  foreach(proto IN LISTS ARGN)
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(outputs ${gen}/${stem}.pb.cc ${gen}/${stem}.pb.h)
    set(grpc_out)
    file(STRINGS ${root}/${proto} service REGEX "^service ")
    if(service)
      list(APPEND outputs ${gen}/${stem}.grpc.pb.cc ${gen}/${stem}.grpc.pb.h)
      set(grpc_out --grpc_out=${gen} --plugin=protoc-gen-grpc=${plugin})
      list(APPEND sources ${gen}/${stem}.grpc.pb.cc)
    endif()
    add_custom_command(OUTPUT ${outputs} COMMAND protobuf::protoc --cpp_out=${gen} ${grpc_out} -I ${root} ${proto}
                       DEPENDS ${all} VERBATIM)
    list(APPEND sources ${gen}/${stem}.pb.cc)
    list(APPEND generated ${outputs})
  endforeach()
  add_custom_target(${name}_sources DEPENDS ${generated})
  if(NOT TARGET proto_sources)
    add_custom_target(proto_sources)
  endif()
  add_dependencies(proto_sources ${name}_sources)
  # Files of services are small and gRPC's headers are not; those of messages have names in common.
  set_source_files_properties(${sources} PROPERTIES UNITY_GROUP services)
  set(messages ${sources})
  list(FILTER messages EXCLUDE REGEX "\\.grpc\\.pb\\.cc$")
  set_source_files_properties(${messages} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(${name} STATIC ${sources})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${WINNOW_UNITY} UNITY_BUILD_MODE GROUP)
  target_include_directories(${name} SYSTEM PUBLIC ${gen})
  target_link_libraries(${name} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
  winnow_precompiled(${name} rpc_headers)
endfunction()

# The project's libraries below `target`, itself included, and the packages' targets that these link.
function(winnow_closure target libraries packages)
  set(queue ${target})
  set(seen)
  set(found)
  while(queue)
    list(POP_FRONT queue next)
    if(next IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${next})
    set(is_imported TRUE)
    if(TARGET ${next})
      get_target_property(is_imported ${next} IMPORTED)
    endif()
    if(is_imported)
      list(APPEND found ${next})
      continue()
    endif()
    get_target_property(dependencies ${next} INTERFACE_LINK_LIBRARIES)
    if(dependencies)
      list(APPEND queue ${dependencies})
    endif()
  endwhile()
  list(REMOVE_ITEM seen ${found})
  set(${libraries} ${seen} PARENT_SCOPE)
  set(${packages} ${found} PARENT_SCOPE)
endfunction()

# winnow_installed_library(<name> OF <library> HEADERS <file>... [ABOVE <installed library>])   one archive, winnow::<name>, of a
# library with all that it needs of the project, but for what the installed library below it has. It is installed with its headers
# as component <name>.
function(winnow_installed_library name)
  cmake_parse_arguments(ARG "" "OF;ABOVE" "HEADERS" ${ARGN})
  winnow_closure(${ARG_OF} libraries packages)
  if(ARG_ABOVE)
    get_target_property(below ${ARG_ABOVE} WINNOW_LIBRARIES)
    list(REMOVE_ITEM libraries ${below})
  endif()
  set(objects)
  foreach(library IN LISTS libraries)
    get_target_property(type ${library} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND objects $<TARGET_OBJECTS:${library}>)
    endif()
  endforeach()
  add_library(winnow_${name} STATIC ${objects})
  set_target_properties(winnow_${name} PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME ${name} WINNOW_LIBRARIES "${libraries}")
  target_compile_features(winnow_${name} INTERFACE cxx_std_20)
  target_link_libraries(winnow_${name} INTERFACE ${ARG_ABOVE} ${packages})
  install(TARGETS winnow_${name} EXPORT winnow_${name} COMPONENT ${name} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT winnow_${name} NAMESPACE winnow:: FILE winnow-${name}.cmake COMPONENT ${name}
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/winnow)
  install(FILES ${ARG_HEADERS} COMPONENT ${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/winnow)
endfunction()
