#include "common/tokenizer/checkpoint/load_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "common/tokenizer/checkpoint/read_file.h"
#include "common/tokenizer/checkpoint/sentencepiece_file.h"
#include "common/tokenizer/checkpoint/tiktoken_file.h"
#include "common/tokenizer/checkpoint/tokenizer_config.h"
#include "common/tokenizer/checkpoint/word_piece_file.h"

namespace winnow {
namespace {

constexpr std::string_view kJson = "tokenizer.json";
constexpr std::string_view kWordPiece = "vocab.txt";
// What Hugging Face's classes call a SentencePiece model, and tiktoken's ranks.
constexpr const char* kModelFiles[] = {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model",
                                       "tiktoken.model"};

absl::StatusOr<TokenizerParts> ParseFile(std::string_view name, std::string_view bytes, const TokenizerConfig& config) {
  if (name == kWordPiece) return ParseWordPieceVocabulary(bytes, config);
  if (name.ends_with(".tiktoken") || LooksLikeTiktoken(bytes)) return ParseTiktoken(bytes, config);
  return ParseSentencePiece(bytes, config);
}

}  // namespace

std::optional<std::string> FindTokenizerFile(const std::string& model_dir) {
  const std::filesystem::path dir = model_dir;
  std::error_code ignored;
  const auto exists = [&](std::string_view name) { return std::filesystem::exists(dir / name, ignored); };
  if (exists(kJson)) return (dir / kJson).string();
  for (const char* name : kModelFiles) {
    if (exists(name)) return (dir / name).string();
  }
  std::vector<std::string> tiktoken;
  for (const auto& entry : std::filesystem::directory_iterator(dir, ignored)) {
    if (entry.path().extension() == ".tiktoken") tiktoken.push_back(entry.path().string());
  }
  if (!tiktoken.empty()) return *std::min_element(tiktoken.begin(), tiktoken.end());
  if (exists(kWordPiece)) return (dir / kWordPiece).string();
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& model_dir) {
  const std::optional<std::string> file = FindTokenizerFile(model_dir);
  if (!file) return nullptr;
  const std::string name = std::filesystem::path(*file).filename();
  if (name == kJson) return Tokenizer::Load(*file);
  WINNOW_ASSIGN_OR_RETURN(const TokenizerConfig config, TokenizerConfig::Load(model_dir));
  WINNOW_ASSIGN_OR_RETURN(const std::string bytes, ReadTokenizerFile(*file));
  auto parts = ParseFile(name, bytes, config);
  if (!parts.ok()) return Annotate(parts.status(), *file);
  parts->digest = Sha256Hex(bytes + config.bytes);
  auto tokenizer = Tokenizer::Assemble(*std::move(parts));
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), *file);
  return tokenizer;
}

}  // namespace winnow
