#include "router/keys/api_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/random.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow {
namespace {

constexpr std::string_view kPrefix = "wk-";
constexpr size_t kIdBytes = 6;
constexpr size_t kSaltBytes = 16;
constexpr size_t kSecretBytes = 32;

std::string RandomHex(size_t bytes) {
  std::string random(bytes, '\0');
  WINNOW_CHECK(getrandom(random.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  return absl::BytesToHexString(random);
}

std::string Digest(const std::string& salt, std::string_view secret) {
  const std::string text = absl::StrCat(salt, AbslSv(secret));
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  WINNOW_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
}

}  // namespace

void ApiKeyLimits::Declare(Fields& fields) {
  fields.Integer("requests-per-minute", &requests_per_minute,
                 "Requests that begin in a minute, each prompt of a list counted; a minute's worth may come at once.",
                 0u, 1u << 30);
  fields.Integer("tokens-per-minute", &tokens_per_minute,
                 "Tokens of prompts and answers in a minute. A request begins while any are left, and what it uses "
                 "beyond is missing afterwards.",
                 0u, 1u << 30);
  fields.Integer("max-concurrent", &max_concurrent, "Answers under way at once, each sample counted.", 0u, 1u << 20);
  fields.Integer("max-priority", &max_priority, "Highest priority that requests may ask for.", -100, 100);
  fields.Integer("max-prompt-tokens", &max_prompt_tokens, "Tokens of a prompt.", 0u, 1u << 30);
  fields.Integer("max-answer-tokens", &max_answer_tokens,
                 "Tokens of an answer; requests that do not say how long theirs may be get so many.", 0u, 1u << 30);
  fields.Custom(
      "models", "NAME[,...]", "Names of models that requests may ask for; empty = all.",
      [this](std::string_view text) {
        models = absl::StrSplit(AbslSv(text), ',', absl::SkipWhitespace());
        for (std::string& model : models) absl::StripAsciiWhitespace(&model);
        return absl::OkStatus();
      },
      [this] { return absl::StrJoin(models, ","); });
}

void ApiKey::Declare(Fields& fields) {
  fields.Text("name", &name, "What the key is called in lists, metrics and logs.");
  fields.Text("tenant", &tenant,
              "Whose it is: keys of one tenant share cached prefixes and their share of the ranks. Empty = the key's "
              "name, so that it shares with no other.");
  fields.Number("weight", &weight, "Share of the tenant in what the ranks do while there is not enough for all.", 1e-6,
                1e6);
  limits.Declare(fields);
}

void ApiKey::DeclareStored(Fields& fields) {
  Declare(fields);
  fields.Text("id", &id, "Public part of the key.");
  fields.Text("salt", &salt, "Hexadecimal.");
  fields.Text("sha256", &sha256, "Of salt and secret, hexadecimal.");
}

std::optional<PresentedKey> ParseCredentials(std::string_view credentials) {
  constexpr std::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(AbslSv(credentials), AbslSv(kScheme))) return std::nullopt;
  std::string_view text = StdSv(absl::StripAsciiWhitespace(AbslSv(credentials.substr(kScheme.size()))));
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  const size_t dash = text.find('-');
  if (dash == text.npos) return std::nullopt;
  return PresentedKey{text.substr(0, dash), text.substr(dash + 1)};
}

std::string IssueSecret(ApiKey& key) {
  key.id = RandomHex(kIdBytes);
  key.salt = RandomHex(kSaltBytes);
  const std::string secret = RandomHex(kSecretBytes);
  key.sha256 = Digest(key.salt, secret);
  return absl::StrCat(AbslSv(kPrefix), key.id, "-", secret);
}

bool Matches(const ApiKey& key, const PresentedKey& presented) {
  const std::string digest = Digest(key.salt, presented.secret);
  return digest.size() == key.sha256.size() && CRYPTO_memcmp(digest.data(), key.sha256.data(), digest.size()) == 0;
}

}  // namespace winnow
