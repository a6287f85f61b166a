// What the documents list must be what there is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/selection/presets.h"
#include "router/openai/request/request_fields.h"
#include "tests/documentation/markdown.h"

namespace winnow {
namespace {

using testing::HasSubstr;

// Cells of the table rows whose first cell is `name` in backquotes, perhaps with something behind it.
std::vector<std::vector<std::string>> RowsOf(const std::string& document, const std::string& name) {
  std::vector<std::vector<std::string>> rows;
  for (const absl::string_view line : absl::StrSplit(document, '\n')) {
    if (!absl::StartsWith(line, "| `" + name + "`")) continue;
    std::vector<std::string> cells;
    for (const absl::string_view cell : absl::StrSplit(line.substr(1), '|')) {
      cells.emplace_back(absl::StripAsciiWhitespace(cell));
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

TEST(Documentation, SelectionListsEveryPreset) {
  const std::string whole = ReadSource("docs/selection.md");
  const size_t begin = whole.find("\n## Presets\n");
  ASSERT_NE(begin, std::string::npos);
  const std::string document = whole.substr(begin, whole.find("\n## ", begin + 1) - begin);
  for (const SelectionPreset& preset : SelectionPresets()) {
    // | preset | specification | after | not built of that system |
    const std::vector<std::vector<std::string>> rows = RowsOf(document, preset.spec.preset);
    ASSERT_EQ(rows.size(), 1u) << preset.spec.preset;
    ASSERT_EQ(rows[0].size(), 5u) << preset.spec.preset;
    EXPECT_EQ(rows[0][3].empty(), preset.not_built.empty()) << preset.spec.preset;
  }
}

// The part of a document from one heading to the next of its kind.
std::string SectionOf(const std::string& document, const std::string& heading) {
  const size_t begin = document.find("\n" + heading + "\n");
  EXPECT_NE(begin, std::string::npos) << heading;
  if (begin == std::string::npos) return "";
  return document.substr(begin, document.find("\n##", begin + 1) - begin);
}

TEST(Documentation, ApiSaysOfEveryFieldWhatBecomesOfIt) {
  const std::string document = ReadSource("docs/api.md");
  const std::string refused = SectionOf(document, "### Fields that are refused");
  const std::string without_effect = SectionOf(document, "### Fields without effect");
  for (const RequestField& field : RequestFields()) {
    const std::string name = absl::StrCat("`", std::string(field.name), "`");
    switch (field.use) {
      case FieldUse::kServed:
        EXPECT_THAT(document, HasSubstr(name));
        EXPECT_THAT(without_effect, testing::Not(HasSubstr(name)));
        break;
      case FieldUse::kNoEffect:
        EXPECT_THAT(without_effect, HasSubstr(name));
        break;
      case FieldUse::kRefused:
        EXPECT_THAT(refused, HasSubstr(name));
        break;
    }
  }
}

TEST(Documentation, EveryMetricOfTheSourcesIsDescribed) {
  const std::string document = ReadSource("docs/metrics.md");
  const std::regex metric(R"re("(winnow_[a-z0-9_]+)")re"), part(R"re(_(bucket|sum|count)$)re");
  std::map<std::string, std::string> metrics;  // and a file
  for (const char* folder : {"cache_rank", "cmd", "common", "inference_rank", "router"}) {
    const std::filesystem::path root = std::filesystem::path(WINNOW_SOURCE_DIR) / folder;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
      const std::string source = ReadSource(std::filesystem::relative(entry.path(), WINNOW_SOURCE_DIR).string());
      for (std::sregex_iterator match(source.begin(), source.end(), metric), end; match != end; ++match) {
        metrics[std::regex_replace((*match)[1].str(), part, "")] = entry.path().filename();
      }
    }
  }
  EXPECT_GT(metrics.size(), 40u);
  for (const auto& [name, file] : metrics) {
    EXPECT_TRUE(std::regex_search(document, std::regex("`" + name + "[`{]"))) << name << " of " << file;
  }
}

TEST(Documentation, DashboardsRulesConsolesAndPagesUseMetricsThatThereAre) {
  const std::string document = ReadSource("docs/metrics.md");
  const std::regex metric(R"re(\b(winnow_[a-z0-9_]+))re"), part(R"re(_(bucket|sum|count)$)re");
  for (const auto& [file, least] :
       {std::pair{"docs/operations.md", 15u}, std::pair{"deploy/grafana/dashboards/overview.json", 12u},
        std::pair{"deploy/grafana/dashboards/kv.json", 20u}, std::pair{"deploy/grafana/dashboards/ranks.json", 10u},
        std::pair{"deploy/grafana/dashboards/health.json", 8u}, std::pair{"deploy/grafana/dashboards/tenants.json", 8u},
        std::pair{"deploy/prometheus/winnow-records.yaml", 6u}, std::pair{"deploy/prometheus/winnow-alerts.yaml", 8u},
        std::pair{"deploy/prometheus/consoles/winnow.html", 15u}}) {
    const std::string text = ReadSource(file);
    std::set<std::string> used;
    for (std::sregex_iterator match(text.begin(), text.end(), metric), end; match != end; ++match) {
      used.insert(std::regex_replace((*match)[1].str(), part, ""));
    }
    EXPECT_GE(used.size(), least) << file;
    for (const std::string& name : used) {
      EXPECT_TRUE(std::regex_search(document, std::regex("`" + name + "[`{]"))) << name << " in " << file;
    }
  }
}

}  // namespace
}  // namespace winnow
