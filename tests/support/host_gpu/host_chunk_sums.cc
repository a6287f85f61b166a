#include "tests/support/host_gpu/host_chunk_sums.h"

#include <algorithm>

#include "tests/support/host_gpu/host_exchange.h"
#include "tests/support/host_gpu/host_table.h"

namespace winnow::test {
namespace {

class HostChunkSum {
 public:
  explicit HostChunkSum(const device::ChunkSumParams& p) : p_(p), value_(*p.value + p.value_plus) {}

  void SendParts() const {
    for (int peer = 0; peer < p_.num_ranks; ++peer) {
      if (peer == p_.rank) continue;
      const device::OwnedRows rows(p_.owners, peer, p_.num_ranks);
      float* const mail = p_.mailboxes[peer] + p_.rank * p_.mailbox_stride;
      for (int i = 0; i < rows.count(); ++i) std::copy_n(Row(p_.partial, rows.row(i)), p_.hidden_size, Row(mail, i));
    }
  }

  // Block 0 stands for all of them.
  void Barrier(int which) const {
    const device::CacheKernels kernels = HostCacheKernels();
    for (int peer = 0; peer < p_.num_ranks; ++peer) {
      if (peer != p_.rank) kernels.raise(nullptr, {.flag = Flag(peer, which, p_.rank), .value = &value_});
    }
    for (int peer = 0; peer < p_.num_ranks; ++peer) {
      if (peer == p_.rank) continue;
      kernels.wait(nullptr, {.flag = Flag(p_.rank, which, peer),
                             .value = &value_,
                             .abort = p_.abort,
                             .error = p_.error,
                             .timeout_us = p_.timeout_us});
    }
  }

  void TakeRows() const {
    const device::OwnedRows rows(p_.owners, p_.rank, p_.num_ranks);
    for (int i = 0; i < rows.count(); ++i) {
      const int row = rows.row(i);
      if (p_.partial != nullptr) AddParts(row, i);
      for (int rank = 0; rank < p_.num_ranks && p_.weight != nullptr; ++rank) {
        if (p_.owners.group_rows > 0 || rank == p_.rank) Norm(row, Row(static_cast<uint16_t*>(p_.out[rank]), row));
      }
    }
  }

 private:
  template <typename T>
  T* Row(T* rows, int row) const {
    return rows + static_cast<size_t>(row) * p_.hidden_size;
  }
  uint32_t* Flag(int with, int which, int of) const {
    return p_.flags[with] + (which * p_.num_ranks + of) * device::kChunkSumBlocks;
  }
  void AddParts(int row, int own_row) const {
    for (int i = 0; i < p_.hidden_size; ++i) {
      float sum = 0;
      for (int rank = 0; rank < p_.num_ranks; ++rank) {
        sum += rank == p_.rank ? Row(p_.partial, row)[i]
                               : Row(p_.mailboxes[p_.rank] + rank * p_.mailbox_stride, own_row)[i];
      }
      Row(p_.x, row)[i] += sum;
    }
  }
  void Norm(int row, uint16_t* out) const {
    HostGpuTable().elementwise->rms_norm(nullptr, {.x = Row(p_.x, row),
                                                   .num_rows = 1,
                                                   .hidden_size = p_.hidden_size,
                                                   .weight = p_.weight,
                                                   .epsilon = p_.epsilon,
                                                   .out = out});
  }

  const device::ChunkSumParams& p_;
  const uint32_t value_;
};

}  // namespace

void AddChunkOnHost(device::Stream, const device::ChunkSumParams& params) {
  const HostChunkSum sum(params);
  if (params.partial != nullptr) sum.SendParts();
  sum.Barrier(0);
  sum.TakeRows();
  if (params.weight != nullptr) sum.Barrier(1);
}

}  // namespace winnow::test
