// The include graph of the tree is the architecture's: see docs/architecture.md, "Folders".
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/include_graph.h"

namespace winnow {
namespace {

const std::filesystem::path kRoot = WINNOW_SOURCE_DIR;

std::string BrokenRuleOf(const std::string& file, const std::string& target) {
  return BrokenRule({file, 1, target});
}

TEST(LayeringRules, LetIncludesPointDownwardsOnly) {
  EXPECT_EQ(BrokenRuleOf("cmd/up.cc", "router/router.h"), "");
  EXPECT_EQ(BrokenRuleOf("router/router.cc", "common/rpc/identity.h"), "");
  EXPECT_EQ(BrokenRuleOf("cache_rank/step/selector.cc", "kernels/params/rows.h"), "");
  EXPECT_EQ(BrokenRuleOf("cache_rank/step/selector.cc", "cache_rank/select/policy/top_k.h"), "");
  EXPECT_EQ(BrokenRuleOf("router/text/chat_template/lexer.cc", "router/text/chat_template/ast.h"), "");
  EXPECT_EQ(BrokenRuleOf("kernels/cpu/avx2/matmul.cc", "kernels/cpu/matmul.h"), "");
  EXPECT_EQ(BrokenRuleOf("tests/e2e/api_test.cc", "cache_rank/step/selector.h"), "");
  EXPECT_EQ(BrokenRuleOf("common/rpc/identity.h", "winnow/v1/identity.pb.h"), "");
  EXPECT_EQ(BrokenRuleOf("router/router.cc", "absl/strings/str_cat.h"), "");

  EXPECT_NE(BrokenRuleOf("router/router.cc", "kernels/params/rows.h"), "");
  EXPECT_NE(BrokenRuleOf("router/router.cc", "cache_rank/step/selector.h"), "");
  EXPECT_NE(BrokenRuleOf("router/membership/registry.cc", "router/dispatch/dispatcher.h"), "");
  EXPECT_NE(BrokenRuleOf("cache_rank/step/selector.cc", "inference_rank/engine/engine.h"), "");
  EXPECT_NE(BrokenRuleOf("cache_rank/store/sequence_kv.cc", "cache_rank/step/selector.h"), "");
  EXPECT_NE(BrokenRuleOf("inference_rank/engine/engine.cc", "cache_rank/step/selector.h"), "");
  EXPECT_NE(BrokenRuleOf("model/transformer.cc", "inference_rank/memory/working_set.h"), "");
  EXPECT_NE(BrokenRuleOf("kernels/cpu/rope.cc", "common/model/rope.h"), "");
  EXPECT_NE(BrokenRuleOf("kernels/cpu/rope.cc", "winnow/v1/identity.pb.h"), "");
  EXPECT_NE(BrokenRuleOf("kernels/cuda/device/device.cc", "kernels/plugin/device_table.h"), "");
  EXPECT_NE(BrokenRuleOf("transport/wire/wire.h", "common/rpc/identity.h"), "");
  EXPECT_NE(BrokenRuleOf("transport/ucx/ucx_transport.cc", "kernels/device/device.h"), "");
  EXPECT_NE(BrokenRuleOf("common/base/status.h", "common/log/log.h"), "");
  EXPECT_NE(BrokenRuleOf("cmd/up.cc", "tools/bench/stream_load.h"), "");
  EXPECT_NE(BrokenRuleOf("cmd/up.cc", "up_options.h"), "");
  EXPECT_NE(BrokenRuleOf("common/new_folder/a.h", "common/base/status.h"), "");
  EXPECT_NE(BrokenRuleOf("inference_rank/new_folder/a.h", "common/base/status.h"), "");
}

TEST(LayeringRules, FindCycles) {
  EXPECT_EQ(FindCycle({{"a", {"b", "c"}}, {"b", {"c"}}, {"c", {}}}), "");
  EXPECT_EQ(FindCycle({{"a", {"b"}}, {"b", {"c"}}, {"c", {"b"}}}), "b -> c -> b");
}

TEST(LayeringRules, ReadIncludesWithTheirLines) {
  const std::vector<Include> includes =
      IncludesOf({"a.cc", "#include <vector>\n\n  #  include \"b/c.h\"\n// \"d.h\"\n"});
  ASSERT_EQ(includes.size(), 1u);
  EXPECT_EQ(includes[0].target, "b/c.h");
  EXPECT_EQ(includes[0].line, 3);
}

class Tree : public testing::Test {
 protected:
  static void SetUpTestSuite() { sources_ = new std::vector<SourceFile>(ReadSources(kRoot)); }
  static void TearDownTestSuite() { delete sources_; }
  void SetUp() override { ASSERT_GT(sources_->size(), 100u) << "no sources below " << kRoot; }

  static std::vector<SourceFile>* sources_;
};
std::vector<SourceFile>* Tree::sources_ = nullptr;

TEST_F(Tree, IncludesFollowTheArchitecture) {
  for (const SourceFile& source : *sources_) {
    for (const Include& include : IncludesOf(source)) {
      const std::string rule = BrokenRule(include);
      EXPECT_TRUE(rule.empty()) << include.file << ":" << include.line << ": #include \"" << include.target
                                << "\": " << rule;
    }
  }
}

// Tests, and benchmarks that start clusters as the tests do, include what
// they like, and nothing includes them.
TEST_F(Tree, ModulesFormNoCycle) {
  std::map<std::string, std::set<std::string>> modules;
  for (const SourceFile& source : *sources_) {
    if (source.path.starts_with("tests/") || source.path.starts_with("tools/bench/")) continue;
    const std::string from = ModuleOf(source.path);
    for (const Include& include : IncludesOf(source)) {
      const std::string to = ModuleOf(include.target);
      if (to != from && std::filesystem::is_directory(kRoot / to)) modules[from].insert(to);
    }
  }
  EXPECT_GT(modules.size(), 50u);
  EXPECT_EQ(FindCycle(modules), "");
}

TEST_F(Tree, EveryHeaderIsIncludedOnce) {
  static const std::regex pragma("(^|\n)#pragma once\n");
  for (const SourceFile& source : *sources_) {
    if (!source.path.ends_with(".h") && !source.path.ends_with(".cuh")) continue;
    EXPECT_TRUE(std::regex_search(source.text, pragma)) << source.path << ":1: a header begins with #pragma once";
  }
}

// Another vendor's GPUs are one folder more beside kernels/cuda. What users write, as "cuda:0", stands in quotes.
TEST_F(Tree, HeadersAboveTheKernelsNameNoVendor) {
  static const std::regex vendor("cuda|nvidia|cublas", std::regex::icase);
  static const std::regex quoted("\"[^\"\n]*\"");
  for (const SourceFile& source : *sources_) {
    if (!source.path.ends_with(".h")) continue;
    const std::string_view folder = std::string_view(source.path).substr(0, source.path.find('/'));
    if (folder == "kernels" || folder == "transport" || folder == "tests" || folder == "tools") continue;
    std::smatch match;
    const std::string text = std::regex_replace(source.text, quoted, "");
    EXPECT_FALSE(std::regex_search(text, match, vendor)) << source.path << " names " << match.str();
  }
}

// A test that is not built is a test deleted.
TEST_F(Tree, EveryTestIsBuilt) {
  for (const SourceFile& source : *sources_) {
    if (!source.path.starts_with("tests/") || !source.path.ends_with("_test.cc")) continue;
    const std::filesystem::path path(source.path);
    // The file may be listed in its own folder or, with its folder, in one above.
    bool listed = false;
    for (std::filesystem::path folder = path.parent_path(); !folder.empty() && !listed; folder = folder.parent_path()) {
      std::ifstream in(kRoot / folder / "CMakeLists.txt");
      const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
      const std::string name = path.lexically_relative(folder).generic_string();
      for (size_t at = text.find(name); at != std::string::npos && !listed; at = text.find(name, at + 1)) {
        const auto boundary = [&](size_t i) {
          return i >= text.size() || std::string(" \t\n()").find(text[i]) != std::string::npos;
        };
        listed = (at == 0 || boundary(at - 1)) && boundary(at + name.size());
      }
    }
    EXPECT_TRUE(listed) << source.path << ":1: no CMakeLists.txt names this test";
  }
}

}  // namespace
}  // namespace winnow
