// Loads a model and asks it questions, all in one process: answer MODEL_DIR QUESTION...
#include <winnow/client.h>
#include <winnow/embedded_engine.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: answer MODEL_DIR QUESTION...\n";
    return 2;
  }
  const absl::StatusOr<std::unique_ptr<winnow::EmbeddedEngine>> engine =
      winnow::EmbeddedEngine::Load({.model_dir = argv[1]});
  if (!engine.ok()) {
    std::cerr << engine.status().message() << "\n";
    return 1;
  }
  // All are under way at once: the engine computes them together.
  std::vector<winnow::AnswerStream> streams;
  for (int i = 2; i < argc; ++i) {
    winnow::v1::GenerateRequest request = winnow::ChatRequest({{"user", argv[i]}});
    request.mutable_sampling()->set_temperature(0);
    request.set_max_tokens(100);
    streams.push_back((*engine)->client().Generate(request));
  }
  for (winnow::AnswerStream& stream : streams) {
    const absl::StatusOr<winnow::GeneratedAnswer> answer = stream.ReadAll();
    if (!answer.ok()) {
      std::cerr << answer.status().message() << "\n";
      return 1;
    }
    std::cout << answer->outputs.at(0).text << "\n";
  }
}
