// Asks a running server a question about a text: ask HOST:PORT FILE QUESTION
// The key of a server that has keys is in the environment, WINNOW_API_KEY.
#include <winnow/client.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: ask HOST:PORT FILE QUESTION\n";
    return 2;
  }
  std::ifstream file(argv[2]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) {
    std::cerr << "cannot read " << argv[2] << "\n";
    return 2;
  }

  const char* key = std::getenv("WINNOW_API_KEY");
  const absl::StatusOr<winnow::Client> client =
      winnow::Client::Connect(argv[1], {.api_key = key == nullptr ? "" : key, .timeout = std::chrono::minutes(2)});
  if (!client.ok()) {
    std::cerr << client.status().message() << "\n";
    return 1;
  }

  winnow::v1::GenerateRequest request = winnow::ChatRequest({{"user", text + "\n\n" + argv[3]}});
  request.set_max_tokens(100);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_selection()->set_budget_tokens(256);

  winnow::AnswerStream stream = client->Generate(request);
  const absl::StatusOr<winnow::GeneratedAnswer> answer =
      stream.ReadAll([](const std::string& piece) { std::cout << piece << std::flush; });
  if (!answer.ok()) {
    std::cerr << answer.status().message() << "\n";
    return 1;
  }
  const winnow::v1::SelectionStats& selection = answer->outputs.at(0).selection;
  std::cout << "\n(" << answer->usage.prompt_tokens() << " tokens read, " << answer->usage.completion_tokens()
            << " written; " << selection.resident_rows() << " of " << selection.context_tokens()
            << " rows resident per layer and head)\n";
}
