#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/selection/spec_text.h"
#include "router/openai/json/api_error.h"
#include "tests/router/openai/request/parsed_request.h"

namespace winnow {
namespace {

TEST(SelectionFields, TakesAPresetATextOrAnObject) {
  const auto selection = [](const std::string& winnow) {
    const auto request = ParseCompletion(With(R"("winnow": )" + winnow));
    return request.ok() ? SpecText(request->fields.selection) : std::string(request.status().message());
  };
  EXPECT_EQ(selection("{}"), "depth");
  EXPECT_EQ(selection(R"({"selection": "exact-token"})"), "exact-token");
  const char expected[] = "depth,predictor=temporal,window=4,budget=64";
  EXPECT_EQ(selection(R"({"selection": "depth,predictor=temporal,window=4,budget=64"})"), expected);
  EXPECT_EQ(selection(R"({"selection": {"preset": "depth", "predictor": "temporal", "window": 4, "budget": 64}})"),
            expected);
  EXPECT_EQ(selection(R"({"selection": {"predictor": "temporal", "window": 4, "budget": 9}, "budget": 64})"), expected)
      << "the shorthand wins";
  EXPECT_EQ(selection(R"({"selection": {"sinks": 4, "recent": null}})"), "depth") << "fixed fields may be repeated";
}

TEST(SelectionFields, SaysThatAFieldIsFixed) {
  const ApiError error = ToApiError(ParseCompletion(With(R"("winnow": {"selection": {"recent": 128}})")).status());
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.message,
            "\"winnow.selection.recent\": selection.recent is fixed when the server starts, at 64; a request cannot "
            "change it to 128.");
}

TEST(SelectionFields, TheGuardIsAcceptedOnceItIsBuilt) {
  const absl::Status status = ParseCompletion(With(R"("winnow": {"min_captured_mass": 0.9})")).status();
  EXPECT_TRUE(status.ok() || ToApiError(status).code == "unsupported_parameter") << status;
}

TEST(SelectionFields, APresetKeepsToTheServersBudget) {
  ServedModel model = TestModel();
  model.max_budget_tokens = 100;
  const Json body = *ParseJsonObject(R"({"prompt": "a", "winnow": {"selection": "async-token"}})");
  const GenerationRequest request = *ParseCompletionRequest(body, model, FakeTextCodec());
  EXPECT_EQ(request.fields.selection.budget_tokens, 100u);
  EXPECT_EQ(request.fields.selection.predictor, Predictor::kTemporal);
}

}  // namespace
}  // namespace winnow
