#include "tools/bench/quality/answer_record.h"

#include <fstream>
#include <set>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tools/bench/quality/csv.h"

namespace winnow {
namespace {

std::string Text(const std::string& value) {
  return value;
}
std::string Text(double value) {
  return absl::StrFormat("%.9g", value);
}
template <class Integer>
requires std::is_integral_v<Integer> std::string Text(Integer value) {
  return absl::StrCat(value);
}
// "935:2 940:1"
std::string Text(const std::map<int, uint64_t>& bins) {
  std::string text;
  for (const auto& [bin, count] : bins) absl::StrAppend(&text, text.empty() ? "" : " ", bin, ":", count);
  return text;
}

bool Parse(const std::string& text, std::string* value) {
  *value = text;
  return true;
}
bool Parse(const std::string& text, double* value) {
  return absl::SimpleAtod(text, value);
}
bool Parse(const std::string& text, bool* value) {
  *value = text == "1";
  return text == "0" || text == "1";
}
template <class Integer>
requires std::is_integral_v<Integer>
bool Parse(const std::string& text, Integer* value) {
  return absl::SimpleAtoi(text, value);
}
bool Parse(const std::string& text, std::map<int, uint64_t>* bins) {
  bins->clear();
  for (const absl::string_view entry : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ':');
    int bin = 0;
    uint64_t count = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &bin) || !absl::SimpleAtoi(parts[1], &count)) return false;
    if (bin < 0 || bin > 1000) return false;
    (*bins)[bin] += count;
  }
  return true;
}

// The columns, in the order of the file: one list for header, writer and reader.
template <class Record, class Visitor>
void VisitFields(Record& r, Visitor visit) {
  visit("mode", r.mode);
  visit("id", r.id);
  visit("task", r.task);
  visit("chars", r.chars);
  visit("prompt_tokens", r.prompt_tokens);
  visit("answer_tokens", r.answer_tokens);
  visit("spec", r.spec);
  visit("budget", r.budget);
  visit("right_tokens", r.right_tokens);
  visit("exact", r.exact);
  visit("decode_steps", r.decode_steps);
  visit("mass_count", r.mass_count);
  visit("mass_mean", r.mass_mean);
  visit("mass_before_mean", r.mass_before_mean);
  visit("corrections", r.corrections);
  visit("correction_rows", r.correction_rows);
  visit("attended_rows", r.attended_rows);
  visit("selection_lookups", r.selection_lookups);
  visit("selection_hits", r.selection_hits);
  visit("streamed_rows", r.streamed_rows);
  visit("streamed_bytes", r.streamed_bytes);
  visit("scored_key_bytes", r.scored_key_bytes);
  visit("mass_bins", r.mass_bins);
}

}  // namespace

std::string AnswerHeader() {
  std::vector<std::string> names;
  AnswerRecord record;
  VisitFields(record, [&](const char* name, const auto&) { names.push_back(name); });
  return CsvLine(names);
}

std::string AnswerLine(const AnswerRecord& record) {
  std::vector<std::string> fields;
  VisitFields(record, [&](const char*, const auto& value) { fields.push_back(Text(value)); });
  return CsvLine(fields);
}

absl::StatusOr<std::vector<AnswerRecord>> ParseAnswers(std::istream& in, std::string_view file) {
  WINNOW_ASSIGN_OR_RETURN(CsvReader reader, CsvReader::Open(in, file));
  std::vector<AnswerRecord> records;
  while (true) {
    WINNOW_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> fields, reader.Next());
    if (!fields.has_value()) return records;
    AnswerRecord record;
    absl::Status status;
    VisitFields(record, [&](const char* name, auto& value) {
      const absl::StatusOr<size_t> column = reader.Column(name);
      if (!column.ok()) {
        if (std::string_view(name) != "attended_rows") status.Update(column.status());
      } else if (!Parse((*fields)[*column], &value)) {
        status.Update(absl::InvalidArgumentError(
            absl::StrCat(reader.Place(), ": \"", (*fields)[*column], "\" is no value of ", name)));
      }
    });
    WINNOW_RETURN_IF_ERROR(status);
    records.push_back(std::move(record));
  }
}

absl::StatusOr<std::vector<AnswerRecord>> ReadAnswers(const std::string& file) {
  std::ifstream in(file);
  if (!in) return absl::NotFoundError(absl::StrCat(file, ": cannot be read"));
  return ParseAnswers(in, file);
}

absl::StatusOr<std::vector<AnswerRecord>> MergeAnswers(const std::vector<std::string>& files) {
  std::vector<AnswerRecord> all;
  std::set<std::string> seen;
  for (const std::string& file : files) {
    WINNOW_ASSIGN_OR_RETURN(std::vector<AnswerRecord> records, ReadAnswers(file));
    for (AnswerRecord& record : records) {
      if (!seen.insert(absl::StrCat(record.mode, "\n", record.id, "\n", record.spec, "\n", record.budget)).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(file, ": ", record.spec, ":", record.budget, " answers ", record.id, " a second time"));
      }
      all.push_back(std::move(record));
    }
  }
  return all;
}

}  // namespace winnow
