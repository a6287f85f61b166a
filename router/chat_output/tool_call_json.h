#pragma once
#include <string>
#include <string_view>

#include "router/chat_output/json_value_scan.h"

namespace winnow {

// Reads one tool call as most models write it, {"name": "f", "arguments": {...}} ("parameters" means the same), while
// its text comes. Members may come in any order; others are passed over.
class ToolCallJson {
 public:
  enum class State {
    kReading,
    kDone,    // the object is complete and names a function
    kBroken,  // it is no tool call; what was not taken does not belong to it
  };

  // Takes text up to the object's end, or to where it stops being a tool call; returns how much.
  size_t Push(std::string_view text);
  State state() const { return state_; }

  // It is certain enough to say so that this is a tool call: function and the beginning of arguments are known.
  bool is_call() const { return has_name_ && has_arguments_; }
  bool has_name() const { return has_name_; }
  const std::string& name() const { return name_; }
  // The arguments that have come since the last call, as they were written; arguments inside a string are unwrapped.
  std::string TakeArguments();

 private:
  enum class Step { kOpen, kKey, kInKey, kColon, kBeforeValue, kInValue, kAfterValue };
  enum class Member { kName, kArguments, kOther };

  // Each takes some of `text`, at least a byte, or breaks off.
  size_t TakePunctuation(std::string_view text);
  size_t TakeKey(std::string_view text);
  size_t TakeValue(std::string_view text);
  void EndKey();
  void EndValue();
  void Break() { state_ = State::kBroken; }

  State state_ = State::kReading;
  Step step_ = Step::kOpen;
  bool first_member_ = true;
  Member member_ = Member::kOther;
  std::string text_;  // of the key or value under way, where it is needed whole
  bool wrapped_ = false;
  JsonValueScan value_;
  bool has_name_ = false;
  bool has_arguments_ = false;
  std::string name_;
  std::string arguments_;
};

}  // namespace winnow
