#include "router/http/tls_context.h"

#include <sys/stat.h>

#include <iterator>

namespace winnow {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

constexpr std::chrono::seconds kLookInterval{1};

// Clients that offer protocols must offer this one.
int ChooseHttp11(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                 unsigned int offered_size, void*) {
  static constexpr unsigned char kHttp11[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* selected = nullptr;
  const int found = SSL_select_next_proto(&selected, size, kHttp11, std::size(kHttp11), offered, offered_size);
  *chosen = selected;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(const TlsFiles& files,
                                                             std::function<void(std::string_view)> on_warning) {
  auto made = std::unique_ptr<TlsContext>(new TlsContext(files, std::move(on_warning)));
  made->version_ = made->Version();
  WINNOW_ASSIGN_OR_RETURN(made->current_, made->Read());
  return made;
}

TlsContext::Context TlsContext::Current() {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return current_;
  next_look_ = now + kLookInterval;
  std::string version = Version();
  if (version == version_) return current_;
  version_ = std::move(version);
  absl::StatusOr<Context> read = Read();
  if (read.ok()) {
    current_ = *std::move(read);
  } else if (on_warning_) {
    on_warning_(absl::StrCat("the certificate stays as it was: ", read.status().message()));
  }
  return current_;
}

std::string TlsContext::Version() const {
  std::string version;
  for (const std::string& path : {files_.certificate, files_.key}) {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) continue;
    absl::StrAppend(&version, info.st_ino, ",", info.st_size, ",", info.st_mtim.tv_sec, ",", info.st_mtim.tv_nsec, ";");
  }
  return version;
}

absl::StatusOr<TlsContext::Context> TlsContext::Read() const {
  WINNOW_RETURN_IF_ERROR(CheckTlsFiles(files_));
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  error_code error;
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_alpn_select_cb(context->native_handle(), ChooseHttp11, nullptr);
  context->set_options(ssl::context::default_workarounds | SSL_OP_NO_RENEGOTIATION, error);
  if (!error) context->use_certificate_chain_file(files_.certificate, error);
  if (!error) context->use_private_key_file(files_.key, ssl::context::pem, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(files_.certificate, ", ", files_.key, ": ", error.message()));
  }
  return context;
}

}  // namespace winnow
