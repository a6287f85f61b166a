#include "cache_rank/replica/replica_rows.h"

#include <algorithm>
#include <cstring>

#include "common/selection/selection_proto.h"
#include "common/selection/shard_spec.h"

namespace winnow {
namespace {

// Before RoPE and rotated, of all layers.
size_t QueryFloats(const CachedSequence& sequence) {
  return sequence.layers.size() * 2 * sequence.layers.front().target.size();
}

void TakeQueries(const CachedSequence& sequence, uint32_t first, uint32_t end, v1::ReplicaRows* rows) {
  for (const LayerSelection& layer : sequence.layers) {
    first = std::max(first, layer.queries.first());
    end = std::min(end, layer.queries.end());
  }
  if (first >= end) return;
  rows->set_first_query_position(first);
  rows->set_num_queries(end - first);
  const size_t layer_bytes = QueryFloats(sequence) / sequence.layers.size() * sizeof(float);
  std::string& queries = *rows->mutable_queries();
  queries.reserve((end - first) * sequence.layers.size() * layer_bytes);
  for (uint32_t position = first; position < end; ++position) {
    for (const LayerSelection& layer : sequence.layers) {
      queries.append(reinterpret_cast<const char*>(layer.queries.pre(position)), layer_bytes);
    }
  }
}

void StoreQueries(const v1::ReplicaRows& rows, CachedSequence& replica) {
  const size_t floats = replica.layers.front().target.size();
  const char* from = rows.queries().data();
  for (uint32_t i = 0; i < rows.num_queries(); ++i) {
    for (LayerSelection& layer : replica.layers) {
      const QueryRing::Slot slot = layer.queries.Push(rows.first_query_position() + i);
      std::memcpy(slot.pre, from, floats * sizeof(float));
      std::memcpy(slot.rotated, from + floats * sizeof(float), floats * sizeof(float));
      from += 2 * floats * sizeof(float);
    }
  }
}

absl::Status CheckShape(const v1::ReplicaRows& rows, const CachedSequence& replica) {
  const uint64_t row_bytes = uint64_t{rows.num_positions()} * replica.layout.token_bytes();
  const uint64_t query_bytes = uint64_t{rows.num_queries()} * QueryFloats(replica) * sizeof(float);
  const uint64_t end = uint64_t{rows.first_position()} + rows.num_positions();
  const bool fits = rows.num_positions() > 0 && end <= replica.kv.max_positions() &&
                    rows.kv_rows().size() == row_bytes && rows.queries().size() == query_bytes &&
                    uint64_t{rows.first_query_position()} + rows.num_queries() <= end &&
                    static_cast<uint64_t>(rows.journaled_token_ids_size()) <= rows.num_positions();
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rows of positions ", rows.first_position(), " to ", end, " of at most ", replica.kv.max_positions(), ", ",
      rows.kv_rows().size(), " bytes, ", rows.num_queries(), " queries in ", rows.queries().size(), " bytes"));
}

}  // namespace

v1::ReplicaOpening OpeningOf(const CachedSequence& sequence) {
  v1::ReplicaOpening opening;
  *opening.mutable_selection() = ToProto(sequence.spec);
  opening.set_max_positions(sequence.kv.max_positions());
  opening.set_prompt_tokens(sequence.prompt_tokens);
  *opening.mutable_sampling() = sequence.sampling;
  *opening.mutable_shard() = ToProto(sequence.shard);
  opening.set_prefix_salt(sequence.opened_with_salt);
  if (sequence.prompt_token_ids == nullptr) return opening;
  opening.mutable_prompt_token_ids()->Add(sequence.prompt_token_ids->begin(), sequence.prompt_token_ids->end());
  return opening;
}

absl::StatusOr<SequenceStore::OpenOptions> OptionsOf(uint64_t sequence_id, const v1::ReplicaOpening& opening) {
  WINNOW_ASSIGN_OR_RETURN(SelectionSpec spec, FromProto(opening.selection()));
  return SequenceStore::OpenOptions{
      .sequence_id = sequence_id,
      .spec = std::move(spec),
      .max_positions = opening.max_positions(),
      .prompt_tokens = opening.prompt_tokens(),
      .sampling = opening.sampling(),
      .prompt_token_ids = {opening.prompt_token_ids().begin(), opening.prompt_token_ids().end()},
      .prefix_salt = opening.prefix_salt(),
      .shard = FromProto(opening.shard())};
}

v1::ReplicaRows RowsOf(const CachedSequence& sequence, uint32_t first, uint32_t count, Executor* team) {
  v1::ReplicaRows rows;
  rows.set_first_position(first);
  rows.set_num_positions(count);
  rows.set_first_kept_position(std::max(sequence.kv.FirstKeptBelow(first + count), sequence.first_copied));
  const size_t layer_bytes = sequence.layout.num_kv_heads * count * sequence.layout.row_bytes();
  std::string& bytes = *rows.mutable_kv_rows();
  bytes.resize(sequence.layers.size() * layer_bytes);
  for (int layer = 0; layer < sequence.layout.num_layers; ++layer) {
    sequence.kv.CopyLayerRows(layer, first, count, reinterpret_cast<std::byte*>(bytes.data()) + layer * layer_bytes,
                              team);
  }
  const SequenceJournal& journal = sequence.journal;
  const auto journaled_end = static_cast<uint32_t>(journal.first_position + journal.token_ids.size());
  const uint32_t from = std::max(first, journal.first_position), end = std::min(first + count, journaled_end);
  if (from < end) {
    rows.set_first_journaled_position(from);
    rows.mutable_journaled_token_ids()->Add(journal.token_ids.begin() + (from - journal.first_position),
                                            journal.token_ids.begin() + (end - journal.first_position));
  }
  TakeQueries(sequence, first, first + count, &rows);
  return rows;
}

absl::Status StoreRows(const v1::ReplicaRows& rows, CachedSequence& replica, Executor* team) {
  WINNOW_RETURN_IF_ERROR(CheckShape(rows, replica));
  const uint32_t first = rows.first_position(), count = rows.num_positions();
  if (first > replica.kv.watermark()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the replica has ", replica.kv.watermark(), " positions, rows came from position ", first, " on"));
  }
  if (first < replica.kv.watermark()) WINNOW_RETURN_IF_ERROR(replica.Restart(first));
  const size_t layer_bytes = rows.kv_rows().size() / replica.layers.size();
  const auto* const bytes = reinterpret_cast<const std::byte*>(rows.kv_rows().data());
  for (int layer = 0; layer < replica.layout.num_layers; ++layer) {
    WINNOW_RETURN_IF_ERROR(replica.kv.Append(layer, first, count, bytes + layer * layer_bytes, team));
  }
  replica.first_copied = std::max(replica.first_copied, rows.first_kept_position());
  for (int i = 0; i < rows.journaled_token_ids_size(); ++i) {
    replica.journal.Record(rows.first_journaled_position() + static_cast<uint32_t>(i), rows.journaled_token_ids(i));
  }
  StoreQueries(rows, replica);
  return absl::OkStatus();
}

}  // namespace winnow
