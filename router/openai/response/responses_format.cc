#include <optional>
#include <utility>

#include "router/openai/response/logprobs.h"
#include "router/openai/response/response_format.h"

namespace winnow {
namespace {

// One item of a response's output: a stretch of reasoning, the answer's text or a call. Its id is that of the response
// with another beginning, so that it is unique and a stream needs no random numbers.
struct OutputItem {
  enum class Kind { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string text = {};  // or the arguments of a call
  std::string call_id = {};
  std::string name = {};
  std::vector<v1::Token> tokens = {};
};

class ResponsesFormat : public ResponseFormat {
 public:
  ResponsesFormat(ResponseIdentity identity, Json echoed, const TextCodec* codec)
      : identity_(std::move(identity)), echoed_(std::move(echoed)), codec_(*codec) {}

  std::string Whole(const std::vector<ChoiceResult>& choices, const UsageTotals& usage) override {
    Take({.message = choices.front().message, .tokens = choices.front().tokens});
    Close(choices.front().end);
    JsonWriter json;
    WriteResponse(is_cut_off_ ? "incomplete" : "completed", &usage, {}, &json);
    return json.Take();
  }

  StreamEvents PromptChunk(uint32_t, const PromptProgress& progress) override {
    Begin();
    AddEvent("winnow.prompt_progress", [&](JsonWriter* json) {
      json->Key("prompt_tokens").Int(progress.prompt_tokens);
      json->Key("computed_tokens").Int(progress.computed_tokens);
      json->Key("cached_tokens").Int(progress.cached_tokens);
    });
    return std::exchange(events_, {});
  }

  StreamEvents DeltaChunk(uint32_t, const ChoiceDelta& delta, const std::optional<ChunkUsage>&, size_t*) override {
    Begin();
    Take(delta);
    return std::exchange(events_, {});
  }

  StreamEvents EndChunk(uint32_t, const ChoiceEnd& end, const std::optional<ChunkUsage>&) override {
    Begin();
    Close(end);
    return std::exchange(events_, {});
  }

  StreamEvents End(const UsageTotals& usage) override {
    AddEvent(is_cut_off_ ? "response.incomplete" : "response.completed", [&](JsonWriter* json) {
      json->Key("response");
      WriteResponse(is_cut_off_ ? "incomplete" : "completed", &usage, {}, json);
    });
    return std::exchange(events_, {});
  }

  StreamEvents Failure(const ApiError& error) override {
    Begin();
    AddEvent("response.failed", [&](JsonWriter* json) {
      json->Key("response");
      WriteResponse("failed", nullptr, error, json);
    });
    return std::exchange(events_, {});
  }

 private:
  using Kind = OutputItem::Kind;

  // What a stream begins with.
  void Begin() {
    if (std::exchange(begun_, true)) return;
    const auto with_response = [&](JsonWriter* json) {
      json->Key("response");
      WriteResponse("in_progress", nullptr, {}, json);
    };
    AddEvent("response.created", with_response);
    AddEvent("response.in_progress", with_response);
  }

  // A new piece of the answer, as events.
  void Take(const ChoiceDelta& delta) {
    const MessageDelta& message = delta.message;
    if (!message.reasoning.empty()) {
      Append(ItemOf(Kind::kReasoning), message.reasoning, "response.reasoning_text.delta", {});
    }
    const bool is_text =
        !message.content.empty() || (message.empty() && !delta.tokens.empty() && identity_.top_logprobs);
    if (is_text) Append(ItemOf(Kind::kMessage), message.content, "response.output_text.delta", delta.tokens);
    for (const ToolCallDelta& call : message.tool_calls) {
      if (!is_open_ || items_.back().kind != Kind::kCall || call_index_ != call.index) OpenCall(call);
      if (!call.arguments.empty()) {
        Append(items_.back(), call.arguments, "response.function_call_arguments.delta", {});
      }
    }
  }

  // The end of the answer. One without any item has an empty text.
  void Close(const ChoiceEnd& end) {
    is_cut_off_ = end.reason == v1::FINISH_REASON_LENGTH;
    if (items_.empty()) ItemOf(Kind::kMessage);
    CloseItem(is_cut_off_ ? "incomplete" : "completed");
  }

  // The open item of this kind, or a new one.
  OutputItem& ItemOf(Kind kind) {
    if (is_open_ && items_.back().kind == kind) return items_.back();
    Open({.kind = kind, .id = absl::StrCat(kind == Kind::kMessage ? "msg_" : "rs_", IdTail())});
    AddEvent("response.content_part.added", [&](JsonWriter* json) { WritePartPlace(/*whole=*/false, json); });
    return items_.back();
  }

  void OpenCall(const ToolCallDelta& call) {
    Open({.kind = Kind::kCall, .id = absl::StrCat("fc_", IdTail()), .call_id = call.id, .name = call.name});
    call_index_ = call.index;
  }

  void Open(OutputItem item) {
    CloseItem("completed");
    items_.push_back(std::move(item));
    is_open_ = true;
    AddEvent("response.output_item.added", [&](JsonWriter* json) {
      json->Key("output_index").Int(items_.size() - 1).Key("item");
      WriteItem(items_.back(), "in_progress", json);
    });
  }

  void Append(OutputItem& item, const std::string& text, std::string_view event, const std::vector<v1::Token>& tokens) {
    item.text += text;
    if (identity_.top_logprobs) item.tokens.insert(item.tokens.end(), tokens.begin(), tokens.end());
    AddEvent(event, [&](JsonWriter* json) {
      WritePlace(json);
      json->Key("delta").String(text);
      if (item.kind == Kind::kMessage) WriteLogprobs(tokens, json);
    });
  }

  void CloseItem(const char* status) {
    if (!std::exchange(is_open_, false)) return;
    const OutputItem& item = items_.back();
    if (item.kind == Kind::kCall) {
      AddEvent("response.function_call_arguments.done", [&](JsonWriter* json) {
        WritePlace(json);
        json->Key("name").String(item.name).Key("arguments").String(item.text);
      });
    } else {
      const bool is_message = item.kind == Kind::kMessage;
      AddEvent(is_message ? "response.output_text.done" : "response.reasoning_text.done", [&](JsonWriter* json) {
        WritePlace(json);
        json->Key("text").String(item.text);
        if (is_message) WriteLogprobs(item.tokens, json);
      });
      AddEvent("response.content_part.done", [&](JsonWriter* json) { WritePartPlace(/*whole=*/true, json); });
    }
    last_status_ = status;
    AddEvent("response.output_item.done", [&](JsonWriter* json) {
      json->Key("output_index").Int(items_.size() - 1).Key("item");
      WriteItem(item, status, json);
    });
  }

  template <typename Fill>
  void AddEvent(std::string_view type, const Fill& fill) {
    JsonWriter json;
    json.BeginObject();
    json.Key("type").String(type).Key("sequence_number").Int(sequence_number_++);
    fill(&json);
    json.EndObject();
    events_.push_back({.name = type, .data = json.Take()});
  }

  // Of the last item.
  void WritePlace(JsonWriter* json) const {
    json->Key("item_id").String(items_.back().id).Key("output_index").Int(items_.size() - 1);
    if (items_.back().kind != Kind::kCall) json->Key("content_index").Int(0);
  }
  void WritePartPlace(bool whole, JsonWriter* json) const {
    WritePlace(json);
    json->Key("part");
    WritePart(items_.back(), whole, json);
  }

  void WritePart(const OutputItem& item, bool whole, JsonWriter* json) const {
    const bool is_message = item.kind == Kind::kMessage;
    json->BeginObject().Key("type").String(is_message ? "output_text" : "reasoning_text");
    json->Key("text").String(whole ? item.text : "");
    if (is_message) {
      json->Key("annotations").BeginArray().EndArray();
      WriteLogprobs(whole ? item.tokens : std::vector<v1::Token>(), json);
    }
    json->EndObject();
  }

  void WriteLogprobs(const std::vector<v1::Token>& tokens, JsonWriter* json) const {
    json->Key("logprobs");
    if (!identity_.top_logprobs) {
      json->BeginArray().EndArray();
      return;
    }
    WriteTokenLogprobs(tokens, {.top = *identity_.top_logprobs}, codec_, json);
  }

  void WriteItem(const OutputItem& item, std::string_view status, JsonWriter* json) const {
    const bool has_begun = status == "in_progress";
    json->BeginObject().Key("id").String(item.id);
    if (item.kind == Kind::kCall) {
      json->Key("type").String("function_call").Key("status").String(status);
      json->Key("call_id").String(item.call_id).Key("name").String(item.name);
      json->Key("arguments").String(item.text).EndObject();
      return;
    }
    if (item.kind == Kind::kMessage) {
      json->Key("type").String("message").Key("status").String(status).Key("role").String("assistant");
    } else {
      json->Key("type").String("reasoning").Key("status").String(status);
      json->Key("summary").BeginArray().EndArray();
    }
    json->Key("content").BeginArray();
    if (!has_begun) WritePart(item, /*whole=*/true, json);
    json->EndArray().EndObject();
  }

  void WriteResponse(const char* status, const UsageTotals* usage, const std::optional<ApiError>& error,
                     JsonWriter* json) const {
    json->BeginObject();
    json->Key("id").String(identity_.id).Key("object").String("response");
    json->Key("created_at").Int(identity_.created_unix_s).Key("status").String(status);
    json->Key("error");
    if (error) {
      const bool is_limit = error->http_status == 429;
      json->BeginObject().Key("code").String(is_limit ? "rate_limit_exceeded" : "server_error");
      json->Key("message").String(error->message).EndObject();
    } else {
      json->Null();
    }
    json->Key("incomplete_details");
    if (is_cut_off_) {
      json->BeginObject().Key("reason").String("max_output_tokens").EndObject();
    } else {
      json->Null();
    }
    json->Key("model").String(identity_.model);
    for (const auto& [name, value] : echoed_.items()) json->Key(name).Raw(value.dump());
    json->Key("output").BeginArray();
    for (size_t i = 0; i < items_.size(); ++i) {
      const bool is_last = i + 1 == items_.size();
      WriteItem(items_[i], is_last ? last_status_ : "completed", json);
    }
    json->EndArray().Key("usage");
    usage == nullptr ? static_cast<void>(json->Null()) : WriteUsage(*usage, json);
    json->EndObject();
  }

  static void WriteUsage(const UsageTotals& usage, JsonWriter* json) {
    json->BeginObject().Key("input_tokens").Int(usage.prompt_tokens());
    json->Key("input_tokens_details").BeginObject();
    json->Key("cached_tokens").Int(usage.cached_prompt_tokens()).EndObject();
    json->Key("output_tokens").Int(usage.completion_tokens());
    json->Key("output_tokens_details").BeginObject();
    json->Key("reasoning_tokens").Int(usage.reasoning_tokens()).EndObject();
    json->Key("total_tokens").Int(uint64_t{usage.prompt_tokens()} + usage.completion_tokens());
    json->Key("winnow");
    usage.WriteSelection(json);
    json->EndObject();
  }

  std::string IdTail() const {
    return absl::StrCat(identity_.id.substr(identity_.id.find('_') + 1), "_", items_.size());
  }

  const ResponseIdentity identity_;
  const Json echoed_;
  const TextCodec& codec_;
  std::vector<OutputItem> items_;
  bool is_open_ = false;  // the last item
  std::string_view last_status_ = "in_progress";
  uint32_t call_index_ = 0;  // of the open call
  bool is_cut_off_ = false;
  bool begun_ = false;  // a stream
  uint64_t sequence_number_ = 0;
  StreamEvents events_;  // that are to go out
};

}  // namespace

std::unique_ptr<ResponseFormat> MakeResponsesFormat(ResponseIdentity identity, Json echoed, const TextCodec* codec) {
  return std::make_unique<ResponsesFormat>(std::move(identity), std::move(echoed), codec);
}

}  // namespace winnow
