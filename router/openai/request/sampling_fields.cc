#include "router/openai/request/sampling_fields.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "router/generation/bad_words.h"
#include "router/generation/request_checks.h"
#include "router/openai/json/api_error.h"
#include "router/openai/request/selection_fields.h"

namespace winnow {
namespace {

constexpr double kMaxFloat = std::numeric_limits<float>::max();

void ReadSampling(JsonReader& reader, v1::SamplingParams* sampling) {
  if (auto value = reader.Number("temperature", 0, 2)) sampling->set_temperature(static_cast<float>(*value));
  if (auto value = reader.Number("top_p", 0, 1, /*low_excluded=*/true)) sampling->set_top_p(static_cast<float>(*value));
  if (auto value = reader.Number("min_p", 0, 1)) sampling->set_min_p(static_cast<float>(*value));
  // -1 is vLLM's way to say "off", 0 the proto's.
  if (auto value = reader.Int("top_k", -1, std::numeric_limits<int32_t>::max())) {
    sampling->set_top_k(*value < 0 ? 0 : static_cast<uint32_t>(*value));
  }
  if (auto value = reader.Number("presence_penalty", -2, 2)) sampling->set_presence_penalty(static_cast<float>(*value));
  if (auto value = reader.Number("frequency_penalty", -2, 2))
    sampling->set_frequency_penalty(static_cast<float>(*value));
  if (auto value = reader.Number("repetition_penalty", 0, kMaxFloat, /*low_excluded=*/true)) {
    const float penalty = static_cast<float>(*value);
    // A double that is above zero may be zero as a float.
    if (penalty > 0) {
      sampling->set_repetition_penalty(penalty);
    } else {
      reader.Fail("repetition_penalty", "is too small.");
    }
  }
  if (auto value = reader.Int("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    sampling->set_seed(static_cast<uint64_t>(*value));
  }
  // As for repetition_penalty: the smallest top_p that means something.
  if (sampling->has_top_p() && sampling->top_p() <= 0) sampling->set_top_p(std::numeric_limits<float>::min());
}

void ReadStop(JsonReader& reader, std::vector<std::string>* stop) {
  const Json* value = reader.Find("stop");
  if (value == nullptr) return;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) return reader.Fail("stop", "must be a string or a list of strings.", "invalid_type");
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty()) return reader.Fail("stop", "must not hold an empty string.");
    if (text.size() > kMaxStopBytes) {
      return reader.Fail("stop", absl::StrCat("holds a string longer than ", kMaxStopBytes, " bytes."));
    }
    stop->push_back(text);
  };
  if (!value->is_array()) return add(*value);
  if (value->size() > kMaxStopStrings) {
    return reader.Fail("stop", absl::StrCat("may hold up to ", kMaxStopStrings, " strings, not ", value->size(), "."));
  }
  for (const Json& item : *value) add(item);
}

absl::Status ReadLogitBias(JsonReader& reader, uint32_t vocab_size, v1::SamplingParams* sampling) {
  const Json* value = reader.Find("logit_bias");
  if (value == nullptr) return absl::OkStatus();
  const auto fail = [](std::string_view message, std::string_view code = "invalid_value") {
    return InvalidField("logit_bias", absl::StrCat("\"logit_bias\" ", AbslSv(message)), code);
  };
  if (!value->is_object()) return fail("must be an object of token ids and biases.", "invalid_type");
  if (value->size() > kMaxLogitBiases) return fail(absl::StrCat("may hold up to ", kMaxLogitBiases, " tokens."));
  for (const auto& [key, bias] : value->items()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(key, &id) || id >= vocab_size) {
      return fail(absl::StrCat("names \"", key.substr(0, 32), "\", which is not a token id below ", vocab_size, "."));
    }
    if (!bias.is_number()) return fail(absl::StrCat("of token ", id, " must be a number."), "invalid_type");
    const double number = bias.get<double>();
    if (!(number >= -100 && number <= 100)) return fail(absl::StrCat("of token ", id, " must be from -100 to 100."));
    v1::LogitBias* entry = sampling->add_logit_bias();
    entry->set_token_id(id);
    entry->set_bias(static_cast<float>(number));
  }
  return absl::OkStatus();
}

// "min_tokens", "allowed_token_ids" and "bad_words".
absl::Status ReadTokenRules(JsonReader& reader, const ServedModel& model, const TextCodec& codec,
                            v1::SamplingParams* sampling) {
  if (const auto min = reader.Int("min_tokens", 0, std::numeric_limits<int32_t>::max())) {
    sampling->set_min_tokens(static_cast<uint32_t>(*min));
  }
  WINNOW_RETURN_IF_ERROR(reader.status());
  if (const Json* ids = reader.Find("allowed_token_ids")) {
    WINNOW_ASSIGN_OR_RETURN(const std::vector<uint32_t> allowed,
                            ParseTokenIds(*ids, "allowed_token_ids", model.vocab_size));
    if (allowed.empty()) return InvalidField("allowed_token_ids", "\"allowed_token_ids\" must not be empty.");
    sampling->mutable_allowed_token_ids()->Assign(allowed.begin(), allowed.end());
  }
  const Json* words = reader.Find("bad_words");
  if (words == nullptr) return absl::OkStatus();
  if (!words->is_array()) return InvalidField("bad_words", "\"bad_words\" must be a list of strings.", "invalid_type");
  std::vector<std::string> texts;
  for (const Json& word : *words) {
    if (!word.is_string()) return InvalidField("bad_words", "\"bad_words\" must be a list of strings.", "invalid_type");
    texts.push_back(word.get<std::string>());
  }
  if (const absl::Status added = AddBadWords(texts, codec, sampling); !added.ok()) {
    return InvalidField("bad_words", absl::StrCat("\"bad_words\" ", added.message(), "."));
  }
  return absl::OkStatus();
}

absl::Status ReadStreamOptions(JsonReader& reader, CommonFields* fields) {
  fields->stream = reader.Bool("stream").value_or(false);
  const Json* options = reader.Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) {
    return InvalidField("stream_options", "\"stream_options\" must be an object.", "invalid_type");
  }
  if (!fields->stream) {
    return InvalidField("stream_options", "\"stream_options\" is allowed only when \"stream\" is true.");
  }
  // Obfuscation pads chunks against those who watch an encrypted connection; there is none here.
  WINNOW_RETURN_IF_ERROR(
      CheckKeys(*options, "stream_options.", {"include_usage", "continuous_usage_stats", "include_obfuscation"}));
  JsonReader option(*options, "stream_options.");
  fields->include_usage = option.Bool("include_usage").value_or(false);
  fields->continuous_usage_stats = option.Bool("continuous_usage_stats").value_or(false);
  return option.status();
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(const Json& list, std::string_view path, uint32_t vocab_size) {
  if (!list.is_array()) {
    return InvalidField(path, absl::StrCat("\"", AbslSv(path), "\" must be a list of token ids."), "invalid_type");
  }
  std::vector<uint32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const std::optional<int64_t> id = AsInt64(item);
    if (!item.is_number() || !id || *id < 0 || *id >= vocab_size) {
      return InvalidField(path, absl::StrCat("\"", AbslSv(path), "\"[", ids.size(), "] must be a token id from 0 to ",
                                             vocab_size - 1, "."));
    }
    ids.push_back(static_cast<uint32_t>(*id));
  }
  return ids;
}

absl::Status CheckMinTokens(const v1::SamplingParams& sampling, uint32_t max_tokens) {
  if (sampling.min_tokens() <= max_tokens) return absl::OkStatus();
  return InvalidField("min_tokens", absl::StrCat("\"min_tokens\" is ", sampling.min_tokens(),
                                                 ", but the answer may have ", max_tokens, " tokens at most."));
}

absl::StatusOr<CommonFields> ParseCommonFields(const Json& body, const ServedModel& model, const TextCodec& codec,
                                               Endpoint endpoint) {
  JsonReader reader(body);
  const std::string name = reader.String("model").value_or(model.id);
  if (!model.HasName(name)) return ModelNotFound(name, model);
  WINNOW_RETURN_IF_ERROR(CheckFields(body, endpoint));

  CommonFields fields;
  fields.model = name;
  fields.n = static_cast<uint32_t>(reader.Int("n", 1, kMaxSamples).value_or(1));
  if (fields.n > model.max_queue) {
    reader.Fail("n", absl::StrCat("is ", fields.n, ", but this server has room for ", model.max_queue,
                                  " samples of all requests together (--max-queue)."));
  }
  if (const auto best_of = reader.Int("best_of", 1, kMaxSamples); best_of && *best_of != fields.n) {
    reader.Fail("best_of", "is not supported by this server unless it equals \"n\".", "unsupported_parameter");
  }
  ReadSampling(reader, &fields.sampling);
  ReadStop(reader, &fields.stop);
  WINNOW_RETURN_IF_ERROR(ReadStreamOptions(reader, &fields));
  fields.skip_prefix_cache = !reader.Bool("cache_prompt").value_or(true);
  fields.ignore_eos = reader.Bool("ignore_eos").value_or(false);
  fields.return_token_ids = reader.Bool("return_token_ids").value_or(false);
  fields.tokens_as_ids = reader.Bool("return_tokens_as_token_ids").value_or(false);
  fields.skip_special_tokens = reader.Bool("skip_special_tokens").value_or(true);
  fields.include_stop = reader.Bool("include_stop_str_in_output").value_or(false);
  WINNOW_RETURN_IF_ERROR(reader.status());

  WINNOW_RETURN_IF_ERROR(ReadLogitBias(reader, model.vocab_size, &fields.sampling));
  WINNOW_RETURN_IF_ERROR(ReadTokenRules(reader, model, codec, &fields.sampling));
  if (const Json* ids = reader.Find("stop_token_ids")) {
    WINNOW_ASSIGN_OR_RETURN(fields.stop_token_ids, ParseTokenIds(*ids, "stop_token_ids", model.vocab_size));
    if (fields.stop_token_ids.size() > kMaxStopTokenIds) {
      return InvalidField("stop_token_ids",
                          absl::StrCat("\"stop_token_ids\" may hold up to ", kMaxStopTokenIds, " ids."));
    }
  }
  WINNOW_ASSIGN_OR_RETURN(fields.selection, ParseSelectionFields(body, model));
  WINNOW_ASSIGN_OR_RETURN(fields.priority, ParsePriority(body));
  WINNOW_ASSIGN_OR_RETURN(fields.trace_parts, ParseTraceParts(body));
  WINNOW_ASSIGN_OR_RETURN(fields.prompt_progress, ParseWinnowFlag(body, "prompt_progress"));
  if (fields.prompt_progress && !fields.stream) {
    return InvalidField("winnow.prompt_progress", "\"winnow.prompt_progress\" needs \"stream\" to be true.");
  }
  WINNOW_ASSIGN_OR_RETURN(fields.resumable, ParseWinnowFlag(body, "resumable"));
  if (fields.resumable && !fields.stream) {
    return InvalidField("winnow.resumable", "\"winnow.resumable\" is for streams: \"stream\" must be true.");
  }
  return fields;
}

}  // namespace winnow
