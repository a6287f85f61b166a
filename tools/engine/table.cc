#include "tools/engine/table.h"

#include "absl/strings/str_format.h"

namespace winnow {
namespace {

std::string Name(const DecodeCase& of) {
  return of.preset.empty() ? PlacementName(of.placement) : of.preset;
}

std::string Measured(const DecodeMeasurement& m) {
  const auto ms = [](double us) { return us > 0 ? absl::StrFormat("%.2f", us / 1e3) : std::string("-"); };
  std::string line =
      absl::StrFormat("%8.2f %8s %8s %8s %8s %9.0f %9.0f %6.2f", m.step_us / 1e3, ms(m.matrices_us), ms(m.attention_us),
                      ms(m.selection_us), ms(m.rest_us), m.tokens_per_second() / m.num_ranks,
                      m.tokens_per_second() / m.num_gpus, m.floor_us / m.step_us);
  if (Selects(m.of.placement)) {
    absl::StrAppendFormat(&line, " %7.0f  %.2f%s", m.selected_rows, m.overlap, m.is_tuned ? " " : "!");
  } else {
    absl::StrAppendFormat(&line, " %7s  %4s ", "", "");
  }
  return line;
}

}  // namespace

std::string DecodeTable(const std::vector<TableLine>& lines, const QualityFile* quality, uint32_t budget) {
  std::string table = absl::StrFormat("%-40s %-25s %8s %4s %2s %2s %8s %8s %8s %8s %8s %9s %9s %6s %7s %6s %6s %6s\n",
                                      "", "", "context", "", "", "", "ms/step", "matrices", "attend", "select", "rest",
                                      "tok/s/inf", "tok/s/GPU", "floor/", "rows", "overlap", "mass", "tokens");
  for (const TableLine& line : lines) {
    std::string placement = PlacementName(line.of.placement);
    if (line.measured.has_value() && line.measured->of.dram_sequences > 0) {
      absl::StrAppend(&placement, " (", line.measured->of.dram_sequences, " in DRAM)");
    }
    absl::StrAppendFormat(&table, "%-40s %-25s %8d %4s %2d %2d ", Name(line.of), placement, line.context_tokens,
                          DtypeName(line.of.kv), line.num_ranks, line.of.batch);
    if (!line.measured.has_value()) {
      absl::StrAppend(&table, "  ", line.why_not, "\n");
      continue;
    }
    absl::StrAppend(&table, Measured(*line.measured));
    const auto entry = quality == nullptr ? std::nullopt : quality->Find(Name(line.of), budget);
    if (entry.has_value()) absl::StrAppendFormat(&table, " %6.3f %6.3f", entry->captured_mass, entry->tokens_right);
    absl::StrAppend(&table, "\n");
  }
  return table;
}

}  // namespace winnow
