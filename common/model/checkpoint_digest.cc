#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/checkpoint.h"

namespace winnow {
namespace {

constexpr size_t kSampleBytes = 4096;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    WINNOW_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  // Each piece is preceded by its length, so that moving a byte between pieces changes the digest.
  void Add(const void* data, uint64_t bytes) {
    Update(&bytes, sizeof(bytes));
    Update(data, bytes);
  }

  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    WINNOW_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &bytes) == 1);
    return std::string(absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), bytes)));
  }

 private:
  void Update(const void* data, size_t bytes) { WINNOW_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1); }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string Checkpoint::Digest() const {
  Sha256 sha;
  sha.Add(config_json_.data(), config_json_.size());
  for (const SafetensorsFile& file : files_) sha.Add(file.header().data(), file.header().size());
  for (const auto& [name, location] : tensors_) {
    const std::span<const uint8_t> bytes = View(location).bytes;
    const size_t sample = std::min(kSampleBytes, bytes.size());
    sha.Add(name.data(), name.size());
    sha.Add(bytes.data(), sample);
    sha.Add(bytes.data() + (bytes.size() - sample), sample);
  }
  return sha.Hex();
}

}  // namespace winnow
