#include "common/discovery/etcd_client.h"

#include "common/rpc/grpc_status.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace winnow {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kRefreshSeconds = 1;
// The process is about to end.
constexpr std::chrono::milliseconds kRevokeTimeout{500};

std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                       const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> EtcdCredentials(const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  if (files.certificate.empty()) {
    options.set_certificate_provider(
        std::make_shared<tls::FileWatcherCertificateProvider>(files.authorities, kRefreshSeconds));
  } else {
    options.set_certificate_provider(std::make_shared<tls::FileWatcherCertificateProvider>(
        files.key, files.certificate, files.authorities, kRefreshSeconds));
    options.watch_identity_key_cert_pairs();
  }
  options.watch_root_certs();
  return tls::TlsCredentials(options);
}

std::string EndOfPrefix(std::string prefix) {
  prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

EtcdClient::EtcdClient(const HostPort& endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : address_(endpoint.ToString()) {
  const std::shared_ptr<grpc::Channel> channel = Connect(address_, credentials);
  keys_ = etcdserverpb::KV::NewStub(channel);
  leases_ = etcdserverpb::Lease::NewStub(channel);
  watches_ = etcdserverpb::Watch::NewStub(channel);
}

absl::Status EtcdClient::StatusOf(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("etcd at ", address_, ": ", status.error_message()));
}

absl::StatusOr<EtcdClient::Granted> EtcdClient::Grant(std::chrono::seconds ttl) {
  grpc::ClientContext context;
  SetTimeout(context, kCallTimeout);
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl.count());
  etcdserverpb::LeaseGrantResponse response;
  WINNOW_RETURN_IF_ERROR(StatusOf(leases_->LeaseGrant(&context, request, &response)));
  if (response.id() == 0 || response.ttl() <= 0) {
    return absl::UnavailableError(absl::StrCat("etcd at ", address_, " grants no lease: ", response.error()));
  }
  return Granted{response.id(), std::chrono::seconds(response.ttl())};
}

absl::StatusOr<std::chrono::seconds> EtcdClient::KeepAlive(int64_t lease) {
  grpc::ClientContext context;
  SetTimeout(context, kCallTimeout);
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  const auto stream = leases_->LeaseKeepAlive(&context);
  const bool answered = stream->Write(request) && stream->Read(&response);
  if (answered) context.TryCancel();  // a call for each beat: nothing else would end it
  const grpc::Status ended = stream->Finish();
  if (!answered) {
    WINNOW_RETURN_IF_ERROR(StatusOf(ended));
    return absl::UnavailableError(absl::StrCat("etcd at ", address_, " ended a call without an answer"));
  }
  return std::chrono::seconds(std::max<int64_t>(response.ttl(), 0));
}

absl::Status EtcdClient::Revoke(int64_t lease) {
  grpc::ClientContext context;
  SetTimeout(context, kRevokeTimeout);
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  return StatusOf(leases_->LeaseRevoke(&context, request, &response));
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(const etcdserverpb::RangeRequest& request) {
  grpc::ClientContext context;
  SetTimeout(context, kCallTimeout);
  etcdserverpb::RangeResponse response;
  WINNOW_RETURN_IF_ERROR(StatusOf(keys_->Range(&context, request, &response)));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Commit(const etcdserverpb::TxnRequest& request) {
  grpc::ClientContext context;
  SetTimeout(context, kCallTimeout);
  etcdserverpb::TxnResponse response;
  WINNOW_RETURN_IF_ERROR(StatusOf(keys_->Txn(&context, request, &response)));
  return response;
}

}  // namespace winnow
