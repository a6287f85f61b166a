#include "transport/ucx/ucx_worker.h"

#include <cstring>
#include <utility>

namespace winnow {
namespace {

constexpr unsigned kFrameMessage = 1;  // id of the active message
// Of a frame whose payload comes another way: its header and Block::reference.
constexpr size_t kAnnouncedBytes = sizeof(wire::FrameHeader) + sizeof(PayloadRef);

absl::Status UcxStatus(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  const std::string message = absl::StrCat(AbslSv(what), ": ", ucs_status_string(status));
  switch (status) {
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_SHMEM_SEGMENT:
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_CANCELED:
      return absl::UnavailableError(message);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return absl::ResourceExhaustedError(message);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(message);
    case UCS_ERR_NO_DEVICE:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<UcxContext>> UcxContext::Create(const std::string& tls) {
  ucp_config_t* config = nullptr;
  WINNOW_RETURN_IF_ERROR(UcxStatus(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read"));
  ucs_status_t status = UCS_OK;
  if (!tls.empty()) status = ucp_config_modify(config, "TLS", tls.c_str());
  // UCX 1.13 aborts the process when a TCP connection breaks in the middle of a zero-copy send (assertion in
  // uct_iface.h).
  if (status == UCS_OK) status = ucp_config_modify(config, "ZCOPY_THRESH", "inf");
  ucp_context_h context = nullptr;
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    status = ucp_init(&params, config, &context);
  }
  ucp_config_release(config);
  WINNOW_RETURN_IF_ERROR(UcxStatus(status, absl::StrCat("ucp_init with transports '", tls, "'")));
  return std::shared_ptr<UcxContext>(new UcxContext(context));
}

UcxContext::~UcxContext() {
  ucp_cleanup(context_);
}

absl::StatusOr<std::shared_ptr<UcxContexts>> UcxContexts::Create(const std::string& tls) {
  std::shared_ptr<UcxContexts> contexts(new UcxContexts(tls));
  WINNOW_ASSIGN_OR_RETURN(contexts->current_, UcxContext::Create(tls));
  return contexts;
}

std::shared_ptr<UcxContext> UcxContexts::current() const {
  const std::scoped_lock lock(mutex_);
  return current_;
}

absl::StatusOr<std::shared_ptr<UcxContext>> UcxContexts::Replace(const std::shared_ptr<UcxContext>& stale) {
  const std::scoped_lock lock(mutex_);
  if (current_ == stale) {
    WINNOW_ASSIGN_OR_RETURN(current_, UcxContext::Create(tls_));
  }
  return current_;
}

UcxWorker::UcxWorker(std::shared_ptr<UcxContext> context, std::shared_ptr<BlockPool> pool, ArrivalHandler on_arrival,
                     ErrorHandler on_error, ErrorHandler on_no_frame)
    : context_(std::move(context)),
      pool_(std::move(pool)),
      on_arrival_(std::move(on_arrival)),
      on_error_(std::move(on_error)),
      on_no_frame_(std::move(on_no_frame)) {}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(UcxContexts& contexts, std::shared_ptr<BlockPool> pool,
                                                             ArrivalHandler on_arrival, ErrorHandler on_error,
                                                             ErrorHandler on_no_frame) {
  std::shared_ptr<UcxContext> context = contexts.current();
  for (bool is_first = true;; is_first = false) {
    std::unique_ptr<UcxWorker> worker(new UcxWorker(context, pool, on_arrival, on_error, on_no_frame));
    const absl::Status status = worker->Open();
    if (status.ok()) return worker;
    if (!is_first || !absl::IsFailedPrecondition(status)) return status;  // not a device that has gone
    WINNOW_ASSIGN_OR_RETURN(context, contexts.Replace(context));
  }
}

absl::Status UcxWorker::Open() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  WINNOW_RETURN_IF_ERROR(UcxStatus(ucp_worker_create(context_->get(), &params, &worker_), "ucp_worker_create"));
  WINNOW_RETURN_IF_ERROR(UcxStatus(ucp_worker_get_efd(worker_, &event_fd_), "ucp_worker_get_efd"));

  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kFrameMessage;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.arg = this;
  handler.cb = [](void* self, const void* header, size_t header_bytes, void* data, size_t data_bytes,
                  const ucp_am_recv_param_t* param) {
    // We send eagerly only, so a rendezvous request comes from no peer of ours. Not taking it makes UCX refuse it.
    const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    static_cast<UcxWorker*>(self)->Receive(header, header_bytes, rendezvous ? nullptr : data,
                                           rendezvous ? SIZE_MAX : data_bytes);
    return UCS_OK;
  };
  WINNOW_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am_recv_handler"));

  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  WINNOW_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_get_address(worker_, &address, &address_bytes), "ucp_worker_get_address"));
  address_.assign(reinterpret_cast<const char*>(address), address_bytes);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  // Requests that UCX did not complete: nothing reads their blocks any more.
  for (Block* block : std::exchange(sending_, {})) BlockPtr{block}.reset();
}

absl::Status UcxWorker::Connect(std::string_view peer_address, bool watch_peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(peer_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
  if (watch_peer) {
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.arg = this;
    params.err_handler.cb = [](void* self, ucp_ep_h /*endpoint*/, ucs_status_t status) {
      static_cast<UcxWorker*>(self)->on_error_(UcxStatus(status, "link to the peer"));
    };
  }
  return UcxStatus(ucp_ep_create(worker_, &params, &endpoint_), "ucp_ep_create");
}

absl::Status UcxWorker::Send(BlockPtr block) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // Eager messages of one endpoint stay in order; a rendezvous would be overtaken by what is sent after it.
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.user_data = block.get();
  params.cb.send = [](void* request, ucs_status_t /*status*/, void* user_data) {
    // A failed send has failed the endpoint too, which says so itself.
    Block* done = static_cast<Block*>(user_data);
    static_cast<UcxWorker*>(done->sender)->sending_.erase(done);
    BlockPtr{done}.reset();
    ucp_request_free(request);
  };
  block->sender = this;
  const size_t header_bytes = block->by_reference ? kAnnouncedBytes : sizeof(block->header);
  const size_t payload_bytes = block->by_reference ? 0 : block->payload_bytes;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, kFrameMessage, &block->header, header_bytes, block->payload(), payload_bytes, &params);
  if (request == nullptr) return absl::OkStatus();
  if (UCS_PTR_IS_ERR(request)) return UcxStatus(UCS_PTR_STATUS(request), "ucp_am_send_nbx");
  sending_.insert(block.release());
  return absl::OkStatus();
}

absl::StatusOr<bool> UcxWorker::Arm() {
  const ucs_status_t status = ucp_worker_arm(worker_);
  if (status == UCS_ERR_BUSY) return false;
  WINNOW_RETURN_IF_ERROR(UcxStatus(status, "ucp_worker_arm"));
  return true;
}

void UcxWorker::Receive(const void* header, size_t header_bytes, const void* data, size_t data_bytes) {
  const bool announced = header_bytes == kAnnouncedBytes && data_bytes == 0;
  if ((header_bytes != sizeof(wire::FrameHeader) && !announced) || data_bytes > wire::kMaxPayloadBytes) {
    on_no_frame_(absl::DataLossError(
        absl::StrCat("message with ", header_bytes, " header and ", data_bytes, " payload bytes is no frame")));
    return;
  }
  BlockPtr block = pool_->Take(data_bytes);
  std::memcpy(&block->header, header, sizeof(block->header));
  block->by_reference = announced;
  if (announced) {
    std::memcpy(&block->reference, static_cast<const std::byte*>(header) + sizeof(block->header),
                sizeof(block->reference));
  } else {
    std::memcpy(block->payload(), data, data_bytes);
  }
  on_arrival_(std::move(block));
}

}  // namespace winnow
