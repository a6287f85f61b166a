#include "common/selection/head_profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <queue>

#include "absl/strings/str_format.h"
#include "common/base/json.h"
#include "common/selection/presets.h"
#include "common/selection/spec_field.h"
#include "common/selection/spec_fields.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "winnow-head-profile";
constexpr int kVersion = 2;

std::string MassKey(double mass) {
  return absl::StrFormat("%.2f", mass);
}

// Typed reads of fields; the first failure is kept and later reads give defaults.
class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}

  const Json& Field(const Json& object, const std::string& field) {
    static const Json kNull;
    if (object.is_object() && object.contains(field)) return object[field];
    Fail(field, "is missing");
    return kNull;
  }
  double Number(const Json& object, const std::string& field, double low, double high) {
    const Json& value = Field(object, field);
    if (!status_.ok()) return 0;
    if (value.is_number() && value.get<double>() >= low && value.get<double>() <= high) return value.get<double>();
    Fail(field, absl::StrCat("is ", value.dump(), ", not a number between ", low, " and ", high));
    return 0;
  }
  std::string Text(const Json& object, const std::string& field) {
    const Json& value = Field(object, field);
    if (!status_.ok()) return {};
    if (value.is_string()) return value.get<std::string>();
    Fail(field, absl::StrCat("is ", value.dump(), ", not a text"));
    return {};
  }
  bool Bool(const Json& object, const std::string& field) {
    const Json& value = Field(object, field);
    if (!status_.ok()) return false;
    if (value.is_boolean()) return value.get<bool>();
    Fail(field, absl::StrCat("is ", value.dump(), ", not true or false"));
    return false;
  }
  // A field that is an array; its elements.
  const Json& Array(const Json& object, const std::string& field) {
    const Json& value = Field(object, field);
    if (status_.ok() && !value.is_array()) Fail(field, "is not an array");
    return value;
  }
  std::vector<double> Numbers(const Json& object, const std::string& field, double low, double high) {
    std::vector<double> numbers;
    for (const Json& value : Array(object, field)) {
      const bool good = value.is_number() && value.get<double>() >= low && value.get<double>() <= high;
      if (!good) Fail(field, absl::StrCat("holds ", value.dump(), ", not a number between ", low, " and ", high));
      numbers.push_back(good ? value.get<double>() : low);
    }
    return numbers;
  }
  void Fail(std::string_view field, std::string_view what) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat(AbslSv(file_), ": ", prefix_, AbslSv(field), " ", AbslSv(what)));
  }
  void Inside(std::string prefix) { prefix_ = std::move(prefix); }
  const absl::Status& status() const { return status_; }

 private:
  const std::string file_;
  std::string prefix_;
  absl::Status status_;
};

constexpr double kLargest = 1e12;

// Shares out rows among heads whose masses are known as functions of the rows that they have.
class BudgetSharing {
 public:
  // Streaming heads take part where `streams` is false.
  BudgetSharing(const HeadProfile& profile, bool streams, uint32_t floor) : profile_(profile) {
    for (size_t list = 0; list < profile.heads.size(); ++list) {
      if (streams && profile.heads[list].streaming) continue;
      lists_.push_back(list);
    }
    budgets_.assign(profile.heads.size(), 0);
    for (const size_t list : lists_) {
      budgets_[list] = floor;
      Offer(list);
    }
  }
  size_t num_lists() const { return lists_.size(); }

  // To the heads whose mass it raises most, then evenly.
  std::vector<uint32_t> Share(uint64_t rows) && {
    while (rows > 0 && !steps_.empty()) {
      const Step step = steps_.top();
      steps_.pop();
      const auto taken = static_cast<uint32_t>(std::min<uint64_t>(rows, step.end - budgets_[step.list]));
      budgets_[step.list] += taken;
      rows -= taken;
      Offer(step.list);
    }
    for (size_t i = 0; i < lists_.size(); ++i) {
      const uint64_t more = rows / lists_.size() + (i < rows % lists_.size() ? 1 : 0);
      const uint64_t budget = std::min<uint64_t>(budgets_[lists_[i]] + more, kUnlimitedBudget - 1);
      budgets_[lists_[i]] = static_cast<uint32_t>(budget);
    }
    return std::move(budgets_);
  }

 private:
  // Rows of a list up to `end`, each of which raises its mass by `gain`.
  struct Step {
    double gain;
    size_t list;
    uint32_t end;
    bool operator<(const Step& other) const {
      return gain != other.gain ? gain < other.gain : list > other.list;  // the greatest is taken first
    }
  };

  // The next rows of a list, where they raise its mass.
  void Offer(size_t list) {
    const HeadProfile::Head& head = profile_.heads[list];
    const auto next = std::upper_bound(HeadProfile::kRows.begin(), HeadProfile::kRows.end(), budgets_[list]);
    if (next == HeadProfile::kRows.end()) return;
    const auto i = static_cast<size_t>(next - HeadProfile::kRows.begin());
    const double before = i == 0 ? head.window_mass : head.mass_with_rows[i - 1];
    const uint32_t rows_before = i == 0 ? 0 : HeadProfile::kRows[i - 1];
    const double gain = (head.mass_with_rows[i] - before) / (*next - rows_before);
    if (gain > 0) steps_.push({gain, list, *next});
  }

  const HeadProfile& profile_;
  std::vector<size_t> lists_;
  std::vector<uint32_t> budgets_;
  std::priority_queue<Step> steps_;
};

}  // namespace

absl::StatusOr<HeadProfile> HeadProfile::Parse(std::string_view json, std::string_view file) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  Reader reader(file);
  if (!root.is_object()) return absl::InvalidArgumentError(absl::StrCat(AbslSv(file), ": is not a JSON object"));
  if (const std::string format = reader.Text(root, "format"); format != kFormat) {
    reader.Fail("format", absl::StrCat("is \"", format, "\", not \"", AbslSv(kFormat), "\""));
  }
  const int version = static_cast<int>(reader.Number(root, "version", 1, 1e6));
  if (version != kVersion) reader.Fail("version", absl::StrCat("is ", version, "; this version reads ", kVersion));

  HeadProfile profile;
  const Json& model = reader.Field(root, "model");
  reader.Inside("model.");
  profile.model_digest = reader.Text(model, "digest");
  profile.num_layers = static_cast<int>(reader.Number(model, "num_layers", 1, 4096));
  profile.num_kv_heads = static_cast<int>(reader.Number(model, "num_kv_heads", 1, 4096));
  reader.Inside("");
  const Json& measured = reader.Field(root, "measured");
  reader.Inside("measured.");
  for (const Json& text : reader.Array(measured, "texts")) {
    if (text.is_string()) {
      profile.texts.push_back(text.get<std::string>());
    } else {
      reader.Fail("texts", "holds what is no text");
    }
  }
  profile.tokens = static_cast<uint64_t>(reader.Number(measured, "tokens", 0, kLargest));
  profile.queries = static_cast<uint64_t>(reader.Number(measured, "queries", 0, kLargest));
  profile.sink_tokens = static_cast<uint32_t>(reader.Number(measured, "sink_tokens", 0, 4096));
  profile.recent_tokens = static_cast<uint32_t>(reader.Number(measured, "recent_tokens", 1, 65536));
  reader.Inside("");
  if (reader.Numbers(root, "rows", 1, kLargest) != std::vector<double>(kRows.begin(), kRows.end())) {
    reader.Fail("rows", "are others than this version's");
  }
  const Json& heads = reader.Array(root, "heads");
  WINNOW_RETURN_IF_ERROR(reader.status());

  const size_t lists = static_cast<size_t>(profile.num_layers) * profile.num_kv_heads;
  if (heads.size() != lists) reader.Fail("heads", absl::StrCat("has ", heads.size(), " entries, not ", lists));
  for (size_t list = 0; list < heads.size() && reader.status().ok(); ++list) {
    const Json& entry = heads[list];
    reader.Inside(absl::StrCat("heads[", list, "]."));
    const auto layer = static_cast<size_t>(reader.Number(entry, "layer", 0, 4096));
    const auto kv_head = static_cast<size_t>(reader.Number(entry, "kv_head", 0, 4096));
    if (layer * profile.num_kv_heads + kv_head != list || kv_head >= static_cast<size_t>(profile.num_kv_heads)) {
      reader.Fail("layer", "and kv_head are out of order");
    }
    Head head;
    head.window_mass = reader.Number(entry, "window_mass", 0, 1);
    head.window_mass_p5 = reader.Number(entry, "window_mass_p5", 0, 1);
    head.streaming = reader.Bool(entry, "streaming");
    const Json& tokens = reader.Field(entry, "tokens_for_mass");
    for (size_t i = 0; i < kMasses.size(); ++i) {
      head.tokens_needed[i] = reader.Number(tokens, MassKey(kMasses[i]), 0, kLargest);
    }
    const std::vector<double> masses = reader.Numbers(entry, "mass_with_rows", 0, 1);
    if (masses.size() != kRows.size()) {
      reader.Fail("mass_with_rows", absl::StrCat("has ", masses.size(), " numbers, not ", kRows.size()));
      break;
    }
    std::copy(masses.begin(), masses.end(), head.mass_with_rows.begin());
    profile.heads.push_back(head);
  }
  WINNOW_RETURN_IF_ERROR(reader.status());
  return profile;
}

absl::StatusOr<HeadProfile> HeadProfile::Load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("head profile: cannot read ", path));
  return Parse(std::string(std::istreambuf_iterator<char>(in), {}), path);
}

std::string HeadProfile::ToJson() const {
  Json root = {{"format", kFormat}, {"version", kVersion}};
  root["model"] = {{"digest", model_digest}, {"num_layers", num_layers}, {"num_kv_heads", num_kv_heads}};
  root["measured"] = {{"texts", texts},
                      {"tokens", tokens},
                      {"queries", queries},
                      {"sink_tokens", sink_tokens},
                      {"recent_tokens", recent_tokens}};
  root["rows"] = kRows;
  root["heads"] = Json::array();
  for (size_t list = 0; list < heads.size(); ++list) {
    const Head& head = heads[list];
    Json tokens_for_mass;
    for (size_t i = 0; i < kMasses.size(); ++i) tokens_for_mass[MassKey(kMasses[i])] = head.tokens_needed[i];
    root["heads"].push_back({{"layer", list / num_kv_heads},
                             {"kv_head", list % num_kv_heads},
                             {"window_mass", head.window_mass},
                             {"window_mass_p5", head.window_mass_p5},
                             {"streaming", head.streaming},
                             {"tokens_for_mass", tokens_for_mass},
                             {"mass_with_rows", head.mass_with_rows}});
  }
  return root.dump(1) + "\n";
}

absl::Status HeadProfile::CheckShape(int model_layers, int model_kv_heads, std::string_view file) const {
  if (model_layers == num_layers && model_kv_heads == num_kv_heads) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("head profile ", AbslSv(file), " is of a model with ", num_layers,
                                                    " layers of ", num_kv_heads, " kv heads, this one has ",
                                                    model_layers, " of ", model_kv_heads));
}

std::vector<std::string> HeadProfile::DoubtsAbout(std::string_view checkpoint_digest, const SelectionSpec& spec) const {
  std::vector<std::string> doubts;
  if (model_digest != checkpoint_digest) doubts.push_back("was measured on another checkpoint of the same shape");
  const bool streams = std::any_of(heads.begin(), heads.end(), [](const Head& head) { return head.streaming; });
  if (streams && (spec.sink_tokens < sink_tokens || spec.recent_tokens < recent_tokens)) {
    doubts.push_back(absl::StrCat("was measured with ", sink_tokens, " sinks and ", recent_tokens,
                                  " recent rows; with ", spec.sink_tokens, " and ", spec.recent_tokens,
                                  " its streaming heads may miss more than it says"));
  }
  return doubts;
}

SelectionSpec WithHeadProfile(SelectionSpec spec, const HeadProfile& profile) {
  if (spec.profile_use == ProfileUse::kNone || IsDense(spec) || !spec.head_budgets.empty()) return spec;
  const bool streams = spec.profile_use != ProfileUse::kBudgets;
  const size_t lists = profile.heads.size();
  if (spec.profile_use == ProfileUse::kStreaming) {
    for (const HeadProfile::Head& head : profile.heads) {
      spec.head_budgets.push_back(head.streaming ? 0 : spec.budget_tokens);
    }
    return spec;
  }
  const uint32_t floor = std::max(spec.budget_tokens / 8, 1u);
  BudgetSharing sharing(profile, streams, floor);
  const uint64_t left = uint64_t{spec.budget_tokens} * lists - uint64_t{floor} * sharing.num_lists();
  spec.head_budgets = std::move(sharing).Share(left);
  return spec;
}

absl::Status CheckNeedsNoHeadProfile(const SelectionSpec& spec) {
  if (spec.profile_use == ProfileUse::kNone) return absl::OkStatus();
  const std::string use = (*FindField("profile_use"))->Print(spec);
  return SpecError("profile_use",
                   absl::StrCat("is ", use,
                                ", which needs a head profile: a server is started with --head-profile FILE (`winnow "
                                "profile-heads` measures one); profile_use=none does without, all heads alike"));
}

}  // namespace winnow
