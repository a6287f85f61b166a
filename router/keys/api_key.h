#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/fields.h"

namespace winnow {

// What requests with a key may ask for. 0: no limit.
struct ApiKeyLimits {
  uint32_t requests_per_minute = 0;  // each prompt counted
  uint32_t tokens_per_minute = 0;    // of prompts and answers
  uint32_t max_concurrent = 0;       // samples under way
  int32_t max_priority = 100;
  uint32_t max_prompt_tokens = 0;
  uint32_t max_answer_tokens = 0;   // also what requests get that name no length
  std::vector<std::string> models;  // names; empty: all

  void Declare(Fields& fields);
};

// What the router keeps of a key: enough to recognise it, not enough to make it.
struct ApiKey {
  std::string name;
  std::string tenant;  // empty: the name
  double weight = 1;
  ApiKeyLimits limits;
  std::string id;      // the public part of the key's text
  std::string salt;    // hexadecimal
  std::string sha256;  // of salt and secret, hexadecimal

  const std::string& tenant_name() const { return tenant.empty() ? name : tenant; }
  // What people say of a key: name, tenant, weight, limits.
  void Declare(Fields& fields);
  // All of it.
  void DeclareStored(Fields& fields);
};

// The text of a key, "wk-ID-SECRET", in its parts.
struct PresentedKey {
  std::string_view id;
  std::string_view secret;
};
// Of the value of an Authorization header, "Bearer KEY"; absent for any other text.
std::optional<PresentedKey> ParseCredentials(std::string_view credentials);

// Gives the key a new id, salt and secret and returns its text, which is nowhere else. The secret has 256 random bits:
// a plain digest of it cannot be reversed by trying, so no slow one is needed on the path of each request.
std::string IssueSecret(ApiKey& key);

// Takes the same time wherever the secrets differ.
bool Matches(const ApiKey& key, const PresentedKey& presented);

}  // namespace winnow
