#pragma once
#include <string>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// Paths of PEM files.
struct TlsFiles {
  std::string certificate;  // of this process, and behind it those that it was signed with, but for the authority's
  std::string key;          // of the certificate, not encrypted
  std::string authorities;  // certificates of those who sign others'; empty where nobody's is checked

  bool empty() const { return certificate.empty() && key.empty() && authorities.empty(); }
};

// Whether the files can be used: readable, the key that of the certificate, none out of date. INVALID_ARGUMENT names
// the file, or says which is missing.
absl::Status CheckTlsFiles(const TlsFiles& files);

// The URI names of the first certificate of a file.
absl::StatusOr<std::vector<std::string>> UriNamesOf(const std::string& certificate);

}  // namespace winnow
