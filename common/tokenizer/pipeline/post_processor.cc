#include "common/tokenizer/pipeline/post_processor.h"

#include <utility>

namespace winnow {
namespace {

constexpr size_t kMaxTemplatePieces = 64;

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::Parse(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  PostProcessor result;
  if (type == "ByteLevel") return result;
  if (type == "TemplateProcessing") {
    WINNOW_RETURN_IF_ERROR(result.ParseTemplate(node));
    return result;
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    WINNOW_RETURN_IF_ERROR(result.ParseClassifier(node));
    return result;
  }
  if (type == "Sequence") {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode list, node.Member("processors"));
    WINNOW_RETURN_IF_ERROR(list.RequireArray());
    for (size_t i = 0; i < list.value().size(); ++i) {
      WINNOW_ASSIGN_OR_RETURN(PostProcessor part, Parse(list.Element(i)));
      for (auto& pieces : part.templates_) result.templates_.push_back(std::move(pieces));
    }
    if (result.templates_.size() > kMaxTemplatePieces) return list.Error("too many processors");
    return result;
  }
  return absl::UnimplementedError(absl::StrCat(node.path(), ".type: unsupported post-processor \"", type, "\""));
}

PostProcessor PostProcessor::Around(std::vector<uint32_t> before, std::vector<uint32_t> after) {
  PostProcessor result;
  result.templates_.push_back({{.is_text = false, .ids = std::move(before)},
                               {.is_text = true, .ids = {}},
                               {.is_text = false, .ids = std::move(after)}});
  return result;
}

absl::Status PostProcessor::ParseTemplate(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode single, node.Member("single"));
  WINNOW_RETURN_IF_ERROR(single.RequireArray());
  if (single.value().size() > kMaxTemplatePieces) return single.Error("too many pieces");
  std::vector<Piece> pieces;
  int texts = 0;
  for (size_t i = 0; i < single.value().size(); ++i) {
    const JsonNode entry = single.Element(i);
    WINNOW_RETURN_IF_ERROR(entry.RequireObject());
    Piece piece;
    if (entry.Has("Sequence")) {
      WINNOW_ASSIGN_OR_RETURN(const JsonNode sequence, entry.Member("Sequence"));
      WINNOW_ASSIGN_OR_RETURN(const std::string id, sequence.String("id"));
      if (id != "A") return sequence.ErrorAt("id", absl::StrCat("a single text is \"A\", got \"", id, "\""));
      piece.is_text = true;
      if (++texts > 1) return sequence.Error("the text appears twice");
    } else if (entry.Has("SpecialToken")) {
      WINNOW_ASSIGN_OR_RETURN(const JsonNode token, entry.Member("SpecialToken"));
      WINNOW_ASSIGN_OR_RETURN(const std::string name, token.String("id"));
      WINNOW_ASSIGN_OR_RETURN(const JsonNode table, node.Member("special_tokens"));
      WINNOW_ASSIGN_OR_RETURN(const JsonNode definition, table.Member(name));
      WINNOW_ASSIGN_OR_RETURN(const JsonNode ids, definition.Member("ids"));
      WINNOW_RETURN_IF_ERROR(ids.RequireArray());
      for (size_t k = 0; k < ids.value().size(); ++k) {
        WINNOW_ASSIGN_OR_RETURN(const uint32_t id, ids.Element(k).AsUint32());
        piece.ids.push_back(id);
      }
    } else {
      return entry.Error("expected {\"Sequence\": ...} or {\"SpecialToken\": ...}");
    }
    pieces.push_back(std::move(piece));
  }
  templates_.push_back(std::move(pieces));
  return absl::OkStatus();
}

absl::Status PostProcessor::ParseClassifier(const JsonNode& node) {
  std::vector<Piece> pieces(3);
  for (const auto& [key, index] : {std::pair<const char*, size_t>{"cls", 0}, {"sep", 2}}) {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode pair, node.Member(key));
    WINNOW_RETURN_IF_ERROR(pair.RequireArray());
    if (pair.value().size() != 2) return pair.Error("expected [token, id]");
    WINNOW_ASSIGN_OR_RETURN(const uint32_t id, pair.Element(1).AsUint32());
    pieces[index].ids.push_back(id);
  }
  pieces[1].is_text = true;
  templates_.push_back(std::move(pieces));
  return absl::OkStatus();
}

std::vector<uint32_t> PostProcessor::Apply(std::vector<uint32_t> ids) const {
  for (const std::vector<Piece>& pieces : templates_) {
    std::vector<uint32_t> out;
    out.reserve(ids.size() + 2 * pieces.size());
    for (const Piece& piece : pieces) {
      const std::vector<uint32_t>& source = piece.is_text ? ids : piece.ids;
      out.insert(out.end(), source.begin(), source.end());
    }
    ids = std::move(out);
  }
  return ids;
}

}  // namespace winnow
