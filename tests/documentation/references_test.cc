// The pages that are made from code say what the code says. With WINNOW_WRITE_REFERENCES in the environment they are
// written anew (`./run render`).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/selection/field_reference.h"
#include "tests/documentation/markdown.h"
#include "tests/documentation/metric_reference.h"

namespace winnow {
namespace {

void ExpectUpToDate(const std::string& path, const std::string& page) {
  if (std::getenv("WINNOW_WRITE_REFERENCES") != nullptr) {
    std::ofstream(std::filesystem::path(WINNOW_SOURCE_DIR) / path) << page;
  }
  EXPECT_EQ(ReadSource(path), page) << path << " is out of date: `./run render` writes it anew";
}

TEST(DocumentationReferences, FieldsOfSpecificationsAreThoseOfTheTable) {
  ExpectUpToDate("docs/selection-fields.md", SelectionFieldReference());
}

TEST(DocumentationReferences, MetricsAreThoseThatProcessesWrite) {
  ExpectUpToDate("docs/metrics.md", MetricReference());
}

}  // namespace
}  // namespace winnow
