#include "common/selection/head_profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_format.h"
#include "common/selection/presets.h"
#include "common/selection/spec_field.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "winnow-head-profile";
constexpr int kVersion = 1;

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
  profile.budget_mass = reader.Number(measured, "budget_mass", 0, 1);
  reader.Inside("");
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
    head.streaming = reader.Bool(entry, "streaming");
    const Json& tokens = reader.Field(entry, "tokens_for_mass");
    for (size_t i = 0; i < kMasses.size(); ++i) {
      head.tokens_needed[i] = reader.Number(tokens, MassKey(kMasses[i]), 0, kLargest);
    }
    head.budget_share = reader.Number(entry, "budget_share", 0, 1);
    if (!(head.budget_share > 0)) reader.Fail("budget_share", "must be above 0");
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
                      {"recent_tokens", recent_tokens},
                      {"budget_mass", budget_mass}};
  root["heads"] = Json::array();
  for (size_t list = 0; list < heads.size(); ++list) {
    const Head& head = heads[list];
    Json tokens_for_mass;
    for (size_t i = 0; i < kMasses.size(); ++i) tokens_for_mass[MassKey(kMasses[i])] = head.tokens_needed[i];
    root["heads"].push_back({{"layer", list / num_kv_heads},
                             {"kv_head", list % num_kv_heads},
                             {"window_mass", head.window_mass},
                             {"streaming", head.streaming},
                             {"tokens_for_mass", tokens_for_mass},
                             {"budget_share", head.budget_share}});
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
  const bool scales = spec.profile_use != ProfileUse::kStreaming;
  const size_t lists = profile.heads.size();
  const auto selects = [&](size_t list) { return !(streams && profile.heads[list].streaming); };
  spec.head_budgets.assign(lists, 0);
  double shares = 0;
  uint64_t selecting = 0;
  for (size_t list = 0; list < lists; ++list) {
    if (!selects(list)) continue;
    spec.head_budgets[list] = scales ? 1 : spec.budget_tokens;
    shares += profile.heads[list].budget_share;
    ++selecting;
  }
  if (!scales || selecting == 0) return spec;
  // One row each is given; the rest is shared.
  const uint64_t rest = uint64_t{spec.budget_tokens} * lists - selecting;
  uint64_t left = rest;
  std::vector<std::pair<double, size_t>> remainders;  // negated, so that sorting puts the largest first
  for (size_t list = 0; list < lists; ++list) {
    if (!selects(list)) continue;
    const double exact = static_cast<double>(rest) * (profile.heads[list].budget_share / shares);
    const uint64_t whole = std::min(static_cast<uint64_t>(exact), left);
    spec.head_budgets[list] += static_cast<uint32_t>(std::min<uint64_t>(whole, kUnlimitedBudget / 2));
    left -= whole;
    remainders.emplace_back(static_cast<double>(whole) - exact, list);
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) ++spec.head_budgets[remainders[i].second];
  return spec;
}

absl::StatusOr<SelectionSpec> WithoutHeadProfile(SelectionSpec spec) {
  if (spec.profile_use == ProfileUse::kNone) return spec;
  WINNOW_ASSIGN_OR_RETURN(const SelectionSpec preset, FindPreset(spec.preset));
  if (spec.profile_use != preset.profile_use) {
    return SpecError("profile_use", "needs the file of a head profile: --head-profile FILE");
  }
  spec.profile_use = ProfileUse::kNone;
  return spec;
}

}  // namespace winnow
