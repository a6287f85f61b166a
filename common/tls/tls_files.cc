#include "common/tls/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

namespace winnow {
namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

// Keys with a passphrase are refused instead of asking the terminal for it.
int NoPassphrase(char*, int, int, void*) {
  return 0;
}

absl::StatusOr<Bio> Open(const std::string& path) {
  Bio file(BIO_new_file(path.c_str(), "r"));
  ERR_clear_error();
  if (file == nullptr) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  return file;
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& path) {
  WINNOW_ASSIGN_OR_RETURN(const Bio file, Open(path));
  Certificate certificate(PEM_read_bio_X509(file.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, " has no certificate (PEM)"));
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the certificate in ", path, " has expired"));
  }
  return certificate;
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError("a certificate and its key need each other");
  }
  if (!files.authorities.empty()) WINNOW_RETURN_IF_ERROR(ReadCertificate(files.authorities).status());
  if (files.certificate.empty()) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(files.certificate));
  WINNOW_ASSIGN_OR_RETURN(const Bio file, Open(files.key));
  const Key key(PEM_read_bio_PrivateKey(file.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.key, " has no key (PEM) that can be read without a passphrase"));
  }
  const bool matches = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (matches) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the key in ", files.key, " is not that of the certificate in ", files.certificate));
}

absl::StatusOr<std::vector<std::string>> UriNamesOf(const std::string& path) {
  WINNOW_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(path));
  const Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

}  // namespace winnow
