#include "common/model/safetensors_header.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "common/base/json.h"
#include "common/base/status.h"

namespace winnow {
namespace {

struct DtypeRow {
  TensorDtype dtype;
  const char* name;
  size_t bytes;
};

constexpr std::array<DtypeRow, 17> kDtypes = {{
    {TensorDtype::kBool, "BOOL", 1},
    {TensorDtype::kU8, "U8", 1},
    {TensorDtype::kI8, "I8", 1},
    {TensorDtype::kF8E4M3, "F8_E4M3", 1},
    {TensorDtype::kF8E5M2, "F8_E5M2", 1},
    {TensorDtype::kF8E8M0, "F8_E8M0", 1},
    {TensorDtype::kU16, "U16", 2},
    {TensorDtype::kI16, "I16", 2},
    {TensorDtype::kF16, "F16", 2},
    {TensorDtype::kBf16, "BF16", 2},
    {TensorDtype::kU32, "U32", 4},
    {TensorDtype::kI32, "I32", 4},
    {TensorDtype::kF32, "F32", 4},
    {TensorDtype::kU64, "U64", 8},
    {TensorDtype::kI64, "I64", 8},
    {TensorDtype::kF64, "F64", 8},
    {TensorDtype::kC64, "C64", 8},
}};

const DtypeRow& Row(TensorDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}

// Receives the header's JSON event by event. A DOM would keep the last of two equal keys and build arbitrarily deep
// trees; this refuses both, and holds only the entries.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& error() const { return error_; }
  std::vector<TensorEntry> TakeEntries() { return std::move(entries_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(int64_t) override { return Unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { return Unexpected("a number that is not an integer"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShape) {
      if (entries_.back().shape.size() >= kMaxTensorRank) {
        return Fail(absl::StrCat("tensor ", Current(), " has more than ", kMaxTensorRank, " dimensions"));
      }
      entries_.back().shape.push_back(value);
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_.size() >= 2)
        return Fail(absl::StrCat("tensor ", Current(), ": data_offsets has more than 2 numbers"));
      offsets_.push_back(value);
      return true;
    }
    return Unexpected("a number");
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata && field_ != Field::kNone) {
      field_ = Field::kNone;
      return true;
    }
    if (place_ != Place::kTensor || field_ != Field::kDtype) return Unexpected("a string");
    for (const DtypeRow& row : kDtypes) {
      if (value == row.name) {
        entries_.back().dtype = row.dtype;
        field_ = Field::kNone;
        return true;
      }
    }
    return Fail(absl::StrCat("tensor ", Current(), " has the unknown dtype ", QuotedName(value)));
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Unexpected("an object");
    keys_.clear();
    if (top_key_ == "__metadata__") {
      place_ = Place::kMetadata;
      field_ = Field::kNone;
    } else {
      place_ = Place::kTensor;
      entries_.push_back({.name = top_key_});
      has_dtype_ = has_shape_ = has_offsets_ = false;
    }
    return true;
  }

  bool key(std::string& value) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(value).second) return Fail(absl::StrCat("the name ", QuotedName(value), " appears twice"));
      top_key_ = value;
      return true;
    }
    if (place_ == Place::kMetadata) {
      if (!keys_.insert(value).second)
        return Fail(absl::StrCat("__metadata__ has the key ", QuotedName(value), " twice"));
      field_ = Field::kMetadataValue;
      return true;
    }
    if (value == "dtype") return Begin(Field::kDtype, has_dtype_, value);
    if (value == "shape") return Begin(Field::kShape, has_shape_, value);
    if (value == "data_offsets") return Begin(Field::kOffsets, has_offsets_, value);
    return Fail(absl::StrCat("tensor ", Current(), " has the unknown field ", QuotedName(value)));
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) {
        return Fail(absl::StrCat("tensor ", Current(), " lacks ",
                                 !has_dtype_   ? "dtype"
                                 : !has_shape_ ? "shape"
                                               : "data_offsets"));
      }
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor) return Unexpected("an array");
    if (field_ == Field::kShape) {
      place_ = Place::kShape;
    } else if (field_ == Field::kOffsets) {
      place_ = Place::kOffsets;
      offsets_.clear();
    } else {
      return Unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets) {
      if (offsets_.size() != 2) return Fail(absl::StrCat("tensor ", Current(), ": data_offsets must be 2 numbers"));
      entries_.back().begin = offsets_[0];
      entries_.back().end = offsets_[1];
    }
    place_ = Place::kTensor;
    field_ = Field::kNone;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) override {
    // what() quotes the last token, which may be as long as the header.
    return Fail(absl::StrCat("malformed JSON at byte ", position,
                             " of the header: ", absl::CHexEscape(absl::string_view(e.what()).substr(0, 200))));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum class Field { kNone, kDtype, kShape, kOffsets, kMetadataValue };

  bool Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }

  bool Begin(Field field, bool& seen, const std::string& name) {
    if (seen) return Fail(absl::StrCat("tensor ", Current(), " has ", name, " twice"));
    seen = true;
    field_ = field;
    return true;
  }

  bool Unexpected(const char* what) {
    switch (place_) {
      case Place::kStart:
      case Place::kEnd:
        return Fail(absl::StrCat("the header must be a JSON object, not ", what));
      case Place::kTop:
        return Fail(absl::StrCat("the value of ", QuotedName(top_key_), " must be an object, not ", what));
      case Place::kMetadata:
        return Fail(absl::StrCat("__metadata__ must map strings to strings; it holds ", what));
      case Place::kShape:
        return Fail(absl::StrCat("tensor ", Current(), ": shape holds ", what));
      case Place::kOffsets:
        return Fail(absl::StrCat("tensor ", Current(), ": data_offsets holds ", what));
      case Place::kTensor:
        break;
    }
    const char* field = field_ == Field::kDtype ? "dtype" : field_ == Field::kShape ? "shape" : "data_offsets";
    return Fail(absl::StrCat("tensor ", Current(), ": ", field, " must not be ", what));
  }

  std::string Current() const { return QuotedName(entries_.back().name); }

  Place place_ = Place::kStart;
  Field field_ = Field::kNone;
  std::string top_key_;
  std::vector<uint64_t> offsets_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> keys_;  // of __metadata__
  std::vector<TensorEntry> entries_;
  std::string error_;
};

absl::Status CheckSize(const TensorEntry& entry, uint64_t data_bytes) {
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", QuotedName(entry.name), ": data_offsets [", entry.begin,
                                                   ", ", entry.end, "] do not lie inside the ", data_bytes,
                                                   " data bytes"));
  }
  uint64_t bytes = TensorDtypeBytes(entry.dtype);
  for (const uint64_t dim : entry.shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", QuotedName(entry.name), ": the size of shape [",
                                                     absl::StrJoin(entry.shape, ", "), "] overflows 64 bits"));
    }
  }
  if (bytes != entry.end - entry.begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", QuotedName(entry.name), ": shape [", absl::StrJoin(entry.shape, ", "), "] of ",
        TensorDtypeName(entry.dtype), " needs ", bytes, " bytes, but data_offsets hold ", entry.end - entry.begin));
  }
  return absl::OkStatus();
}

}  // namespace

size_t TensorDtypeBytes(TensorDtype dtype) {
  return Row(dtype).bytes;
}
const char* TensorDtypeName(TensorDtype dtype) {
  return Row(dtype).name;
}

std::optional<Dtype> WeightDtype(TensorDtype dtype) {
  switch (dtype) {
    case TensorDtype::kF32:
      return Dtype::kF32;
    case TensorDtype::kF16:
      return Dtype::kF16;
    case TensorDtype::kBf16:
      return Dtype::kBf16;
    default:
      return std::nullopt;
  }
}

std::string QuotedName(std::string_view name) {
  constexpr size_t kMaxShown = 120;
  const bool shortened = name.size() > kMaxShown;
  return absl::StrCat("'", absl::CHexEscape(AbslSv(name.substr(0, kMaxShown))), shortened ? "...'" : "'");
}

absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::string_view json, uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') return absl::InvalidArgumentError("the header does not begin with '{'");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return absl::InvalidArgumentError(reader.error().empty() ? "malformed JSON in the header" : reader.error());
  }
  std::vector<TensorEntry> entries = reader.TakeEntries();
  for (const TensorEntry& entry : entries) WINNOW_RETURN_IF_ERROR(CheckSize(entry, data_bytes));
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorEntry& entry = entries[i];
    if (entry.begin < covered) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", QuotedName(entry.name), " at bytes [", entry.begin,
                                                     ", ", entry.end, "] overlaps tensor ",
                                                     QuotedName(entries[i - 1].name)));
    }
    if (entry.begin > covered) {
      return absl::InvalidArgumentError(absl::StrCat("bytes [", covered, ", ", entry.begin, "] before tensor ",
                                                     QuotedName(entry.name), " belong to no tensor"));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors cover ", covered, " bytes, but the file has ", data_bytes, " data bytes"));
  }
  return entries;
}

}  // namespace winnow
