#include "common/rpc/admin_service.h"

namespace winnow {

AdminServiceImpl::AdminServiceImpl(v1::GetServerInfoResponse info, std::function<v1::RankLoad()> load)
    : info_(std::move(info)), load_(std::move(load)) {}

grpc::Status AdminServiceImpl::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                             v1::GetServerInfoResponse* response) {
  *response = info_;
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*, v1::GetLoadResponse* response) {
  *response->mutable_load() = load_();
  return grpc::Status::OK;
}

}  // namespace winnow
