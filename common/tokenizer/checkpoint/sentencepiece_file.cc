#include "common/tokenizer/checkpoint/sentencepiece_file.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/tokenizer/checkpoint/sentencepiece_normalizer.h"
#include "common/tokenizer/model/rank_bpe_model.h"
#include "common/tokenizer/model/unigram_model.h"
#include "common/tokenizer/utf8.h"
#include "winnow/sentencepiece/model.pb.h"

namespace winnow {
namespace {

namespace pb = winnow::sentencepiece;

// The byte at which the first field that is damaged begins; protobuf itself only says that something is.
size_t DamagedAt(std::string_view bytes) {
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  for (;;) {
    const int at = in.CurrentPosition();
    const uint32_t tag = in.ReadTag();
    if (tag == 0 || !WireFormatLite::SkipField(&in, tag)) return static_cast<size_t>(at);
  }
}

bool InText(const pb::Piece& piece) {
  return piece.type() == pb::Piece::NORMAL || piece.type() == pb::Piece::USER_DEFINED ||
         piece.type() == pb::Piece::UNUSED;
}

// What SentencePiece checks when it loads a model, and what we rely on.
absl::Status CheckPieces(const pb::Model& model, uint32_t* unk_id) {
  const auto error = [](int id, std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("pieces[", id, "]: ", AbslSv(what)));
  };
  if (model.pieces_size() > static_cast<int>(Vocabulary::kMaxId)) {
    return absl::InvalidArgumentError(
        absl::StrCat("pieces: ", model.pieces_size(), ", the limit is ", Vocabulary::kMaxId));
  }
  bool has_unk = false;
  int byte_pieces = 0;
  absl::flat_hash_set<absl::string_view> in_text, others;
  for (int id = 0; id < model.pieces_size(); ++id) {
    const pb::Piece& piece = model.pieces(id);
    if (piece.piece().empty()) return error(id, "the piece is empty");
    if (const size_t at = FindInvalidUtf8(piece.piece()); at != std::string::npos) {
      return error(id, absl::StrCat("not UTF-8 at byte ", at));
    }
    if (!std::isfinite(piece.score())) return error(id, "the score is not a number");
    if (!(InText(piece) ? in_text : others).insert(piece.piece()).second) {
      return error(id, absl::StrCat("\"", piece.piece(), "\" is there twice"));
    }
    if (piece.type() == pb::Piece::UNKNOWN) {
      if (has_unk) return error(id, "a second unknown piece");
      has_unk = true;
      *unk_id = static_cast<uint32_t>(id);
    }
    if (piece.type() == pb::Piece::BYTE) {
      if (!ByteTokenValue(piece.piece())) return error(id, absl::StrCat("\"", piece.piece(), "\" is no byte"));
      ++byte_pieces;
    }
  }
  if (!has_unk) return absl::InvalidArgumentError("pieces: none is the unknown piece");
  if (model.trainer_spec().byte_fallback() && byte_pieces != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("trainer_spec.byte_fallback: set, but ", byte_pieces, " of 256 bytes have a piece"));
  }
  return absl::OkStatus();
}

std::unique_ptr<TokenModel> MakeUnigram(const pb::Model& model, uint32_t unk_id) {
  std::vector<UnigramModel::Piece> pieces;
  for (const pb::Piece& piece : model.pieces()) {
    pieces.push_back({.text = piece.piece(),
                      .score = piece.score(),
                      .in_text = InText(piece) && piece.type() != pb::Piece::UNUSED,
                      .user_defined = piece.type() == pb::Piece::USER_DEFINED,
                      .sets_range = piece.type() == pb::Piece::NORMAL});
  }
  return std::make_unique<UnigramModel>(pieces,
                                        UnigramModel::Options{.unk_id = unk_id,
                                                              .byte_fallback = model.trainer_spec().byte_fallback(),
                                                              .arithmetic = UnigramModel::Arithmetic::kSentencePiece});
}

std::unique_ptr<TokenModel> MakeBpe(const pb::Model& model, uint32_t unk_id) {
  // The higher the score, the lower the rank; equal scores share one.
  std::set<float, std::greater<>> scores;
  for (const pb::Piece& piece : model.pieces()) scores.insert(piece.score());
  absl::flat_hash_map<float, uint32_t> ranks;
  for (const float score : scores) ranks.emplace(score, static_cast<uint32_t>(ranks.size()));
  std::vector<RankBpeModel::Piece> pieces;
  for (int id = 0; id < model.pieces_size(); ++id) {
    const pb::Piece& piece = model.pieces(id);
    using Kind = RankBpeModel::Kind;
    pieces.push_back({.text = piece.piece(),
                      .id = static_cast<uint32_t>(id),
                      .rank = ranks[piece.score()],
                      .kind = !InText(piece)                            ? Kind::kNotInText
                              : piece.type() == pb::Piece::USER_DEFINED ? Kind::kUserDefined
                              : piece.type() == pb::Piece::UNUSED       ? Kind::kUnused
                                                                        : Kind::kNormal});
  }
  return std::make_unique<RankBpeModel>(
      pieces, RankBpeModel::Options{.unk_id = unk_id, .byte_fallback = model.trainer_spec().byte_fallback()});
}

absl::StatusOr<std::unique_ptr<Normalizer>> MakeNormalizer(const pb::Model& model, const TokenizerConfig& config) {
  const pb::NormalizerSpec& spec = model.normalizer_spec();
  CharsMap rules;
  if (!spec.precompiled_charsmap().empty()) {
    auto parsed = CharsMap::Parse(spec.precompiled_charsmap());
    if (!parsed.ok()) return Annotate(parsed.status(), "normalizer_spec.precompiled_charsmap");
    rules = *std::move(parsed);
  }
  std::vector<std::string_view> user_defined;
  for (const pb::Piece& piece : model.pieces()) {
    if (piece.type() == pb::Piece::USER_DEFINED) user_defined.push_back(piece.piece());
  }
  using DummyPrefix = SentencePieceNormalizer::DummyPrefix;
  SentencePieceNormalizer::Options options;
  options.dummy_prefix = !spec.add_dummy_prefix() || !config.add_prefix_space.value_or(true) ? DummyPrefix::kNone
                         : config.legacy.value_or(true)                                      ? DummyPrefix::kEveryPart
                                                                                             : DummyPrefix::kInputStart;
  options.prefix_is_suffix = model.trainer_spec().treat_whitespace_as_suffix();
  options.remove_extra_whitespaces = spec.remove_extra_whitespaces();
  options.escape_whitespaces = spec.escape_whitespaces();
  return std::make_unique<SentencePieceNormalizer>(std::move(rules), user_defined, options);
}

// Families whose ids are not the file's.
absl::Status CheckFamily(const TokenizerConfig& config) {
  for (const char* family :
       {"XLMRoberta", "Camembert", "MBart", "Nllb", "NLLB", "Barthez", "Pegasus", "M2M100", "Marian"}) {
    if (config.ClassContains(family)) {
      return absl::UnimplementedError(absl::StrCat("tokenizer_config.json says tokenizer_class ",
                                                   config.tokenizer_class,
                                                   ", which numbers the pieces anew: it needs a tokenizer.json"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseSentencePiece(std::string_view bytes, const TokenizerConfig& config) {
  pb::Model model;
  if (!model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a SentencePiece model: damaged in the field at byte ", DamagedAt(bytes)));
  }
  WINNOW_RETURN_IF_ERROR(CheckFamily(config));
  uint32_t unk_id = 0;
  WINNOW_RETURN_IF_ERROR(CheckPieces(model, &unk_id));
  const pb::TrainerSpec& trainer = model.trainer_spec();
  TokenizerParts parts;
  if (trainer.model_type() == pb::TrainerSpec::UNIGRAM) {
    parts.model = MakeUnigram(model, unk_id);
  } else if (trainer.model_type() == pb::TrainerSpec::BPE) {
    parts.model = MakeBpe(model, unk_id);
  } else {
    return absl::UnimplementedError(
        absl::StrCat("trainer_spec.model_type: ", pb::TrainerSpec::ModelType_Name(trainer.model_type()),
                     " is not supported, only UNIGRAM and BPE are"));
  }
  if (!model.denormalizer_spec().precompiled_charsmap().empty()) {
    return absl::UnimplementedError("denormalizer_spec.precompiled_charsmap: rules for decoding are not supported");
  }
  WINNOW_ASSIGN_OR_RETURN(parts.normalizer, MakeNormalizer(model, config));

  parts.added_tokens = config.AllAddedTokens(*parts.model);
  for (int id = 0; id < model.pieces_size(); ++id) {
    const pb::Piece& piece = model.pieces(id);
    if (piece.type() != pb::Piece::CONTROL) continue;
    parts.added_tokens.push_back({.id = static_cast<uint32_t>(id), .content = piece.piece(), .special = true});
  }
  const std::string& unk = model.pieces(static_cast<int>(unk_id)).piece();
  const bool unk_is_special = std::any_of(parts.added_tokens.begin(), parts.added_tokens.end(),
                                          [&](const auto& t) { return t.content == unk; });
  const pb::NormalizerSpec& spec = model.normalizer_spec();
  parts.decoder = Decoder::SentencePiece({.byte_fallback = trainer.byte_fallback(),
                                          .drop_leading = spec.add_dummy_prefix() || spec.remove_extra_whitespaces(),
                                          .drop_all_leading = spec.remove_extra_whitespaces(),
                                          .unk_piece = unk_is_special ? "" : unk,
                                          .unk_surface = trainer.unk_surface()});

  // Llama's habit, which most decoders share, unless the file says otherwise.
  const bool is_t5 = config.ClassContains("T5");
  const bool has_bos = parts.model->TokenId(config.bos_token.value_or(trainer.bos_piece())).has_value();
  std::optional<std::string> before, after;
  if (config.add_bos_token.value_or(!is_t5 && has_bos)) before = config.bos_token.value_or(trainer.bos_piece());
  if (config.add_eos_token.value_or(is_t5)) after = config.eos_token.value_or(trainer.eos_piece());
  WINNOW_ASSIGN_OR_RETURN(parts.post_processor,
                          TokenizerConfig::Surround(before, after, *parts.model, parts.added_tokens));
  return parts;
}

}  // namespace winnow
