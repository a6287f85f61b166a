#include "common/rpc/credentials.h"

#include "common/rpc/caller_policy.h"
#include "common/rpc/caller_roles.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace winnow {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kRefreshSeconds = 1;

class CallerCheck final : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer, OutputMetadata*,
                       OutputMetadata*) override {
    const auto method = metadata.find(":path");
    if (method == metadata.end()) return {grpc::StatusCode::INTERNAL, "a call without a method"};
    return ToGrpc(CheckCaller({method->second.data(), method->second.size()},
                              RolesOfPeer(peer).value_or(std::vector<PeerRole>())));
  }
};

class ServerCheck final : public tls::ExternalCertificateVerifier {
 public:
  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) uris.emplace_back(uri.data(), uri.size());
    *status = ToGrpc(CheckServer(PeerRolesOf(uris)));
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}
};

}  // namespace

struct Credentials::Watched {
  std::shared_ptr<tls::CertificateProviderInterface> provider;
  bool has_certificate = false;
};

absl::StatusOr<Credentials> Credentials::Load(const TlsFiles& files) {
  WINNOW_RETURN_IF_ERROR(CheckTlsFiles(files));
  if (files.authorities.empty()) return absl::InvalidArgumentError("the authorities' certificates are missing");
  auto watched = std::make_shared<Watched>();
  watched->has_certificate = !files.certificate.empty();
  if (watched->has_certificate) {
    watched->provider = std::make_shared<tls::FileWatcherCertificateProvider>(files.key, files.certificate,
                                                                              files.authorities, kRefreshSeconds);
  } else {
    watched->provider = std::make_shared<tls::FileWatcherCertificateProvider>(files.authorities, kRefreshSeconds);
  }
  Credentials credentials;
  credentials.files_ = std::move(watched);
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::ForChannels() const {
  if (files_ == nullptr) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(files_->provider);
  options.watch_root_certs();
  if (files_->has_certificate) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<ServerCheck>());
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> Credentials::ForServer() const {
  if (files_ == nullptr) return grpc::InsecureServerCredentials();
  tls::TlsServerCredentialsOptions options(files_->provider);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  // Clients of the API may have none; everything else is refused call by call, with a reason.
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  const std::shared_ptr<grpc::ServerCredentials> credentials = tls::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<CallerCheck>());
  return credentials;
}

}  // namespace winnow
