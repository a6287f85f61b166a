#include "router/generation/resume_token.h"

#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"
#include "common/base/prefix_hash.h"
#include "common/selection/spec_text.h"
#include "router/generation/request_checks.h"
#include "router/generation/request_error.h"

namespace winnow {
namespace {

// The version; an older router refuses what it cannot read.
constexpr absl::string_view kPrefix = "winnow1.";
constexpr size_t kMaxTokenBytes = 1024;
constexpr std::string_view kField = "resume_token";

uint64_t Random64() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

uint64_t CheckOf(v1::ResumeToken token) {
  token.clear_check();
  return PrefixRoot(token.SerializeAsString());
}

// A digest of values one after the other, each with its end.
class Digest {
 public:
  void Add(uint64_t value) { hash_ = MixPrefixWord(hash_, value); }
  void Add(std::string_view text) { Add(PrefixRoot(text)); }
  void Add(const std::vector<uint32_t>& values) {
    Add(values.size());
    for (const uint32_t value : values) Add(uint64_t{value});
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

uint64_t RequestDigest(const GenerationInput& input) {
  v1::SamplingParams sampling = input.sampling;
  sampling.clear_seed();
  Digest digest;
  digest.Add(input.prompt_token_ids);
  digest.Add(uint64_t{input.n});
  digest.Add(std::string_view(sampling.SerializeAsString()));
  digest.Add(input.stop.size());
  for (const std::string& stop : input.stop) digest.Add(std::string_view(stop));
  digest.Add(input.stop_token_ids);
  digest.Add(uint64_t{input.ignore_eos});
  digest.Add(uint64_t{input.decoding.skip_special_tokens});
  digest.Add(input.decoding.shown_special);
  digest.Add(uint64_t{input.include_stop});
  digest.Add(input.top_logprobs ? 1 + uint64_t{*input.top_logprobs} : 0);
  digest.Add(input.prompt_top_logprobs ? 1 + uint64_t{*input.prompt_top_logprobs} : 0);
  digest.Add(std::string_view(SpecText(input.selection)));
  digest.Add(uint64_t{input.trace_parts});
  return digest.value();
}

}  // namespace

v1::ResumeToken NewResumeToken(std::string_view cluster, const GenerationInput& input) {
  v1::ResumeToken token;
  token.set_cluster(PrefixRoot(cluster));
  token.set_key_high(Random64());
  token.set_key_low(Random64());
  token.set_request(RequestDigest(input));
  token.set_tenant(PrefixRoot(input.caller.tenant));
  token.set_seed(input.sampling.seed());
  token.set_outputs(input.n);
  token.set_expires_unix_s(std::chrono::ceil<std::chrono::seconds>(input.deadline.time_since_epoch()).count());
  return token;
}

std::string EncodeResumeToken(v1::ResumeToken token) {
  token.set_check(CheckOf(token));
  return absl::StrCat(kPrefix, absl::WebSafeBase64Escape(token.SerializeAsString()));
}

absl::StatusOr<v1::ResumeToken> DecodeResumeToken(std::string_view text) {
  absl::string_view rest = AbslSv(text);
  std::string bytes;
  v1::ResumeToken token;
  if (text.size() > kMaxTokenBytes || !absl::ConsumePrefix(&rest, kPrefix) ||
      !absl::WebSafeBase64Unescape(rest, &bytes) || absl::WebSafeBase64Escape(bytes) != rest ||
      !token.ParseFromString(bytes) || token.check() != CheckOf(token) || token.outputs() == 0 ||
      token.outputs() > RequestLimits::kSamples) {
    return InvalidField(kField, "resume_token: this is no resume token, or not all of one", "resume_token_malformed");
  }
  return token;
}

absl::Status CheckResumeToken(const v1::ResumeToken& token, std::string_view cluster, const std::string& tenant,
                              std::chrono::system_clock::time_point now) {
  if (token.cluster() != PrefixRoot(cluster)) {
    return InvalidField(kField, "resume_token: it was made by another cluster", "resume_token_of_another_cluster");
  }
  if (token.tenant() != PrefixRoot(tenant)) {
    return WithField(absl::PermissionDeniedError("resume_token: it was made for another API key"), kField,
                     "resume_token_of_another_key");
  }
  if (token.expires_unix_s() < std::chrono::floor<std::chrono::seconds>(now.time_since_epoch()).count()) {
    return WithField(absl::NotFoundError("resume_token: it has expired: the deadline of its request has passed"),
                     kField, "resume_token_expired");
  }
  return absl::OkStatus();
}

absl::Status CheckResumesRequest(const v1::ResumeToken& token, const GenerationInput& input) {
  const bool seeds_differ = input.sampling.has_seed() && input.sampling.seed() != token.seed();
  if (token.request() == RequestDigest(input) && token.outputs() == input.n && !seeds_differ) return absl::OkStatus();
  return InvalidField(kField,
                      "resume_token: it was made for another request; send the same one again, to a router with the "
                      "same defaults",
                      "resume_token_mismatch");
}

std::string ResumeKeyOf(const v1::ResumeToken& token, uint32_t output_index) {
  return absl::StrCat(absl::Hex(token.key_high(), absl::kZeroPad16), absl::Hex(token.key_low(), absl::kZeroPad16), "/",
                      output_index);
}

}  // namespace winnow
