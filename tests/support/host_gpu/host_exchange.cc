#include "tests/support/host_gpu/host_exchange.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"
#include "tests/support/host_gpu/host_flags.h"

namespace winnow::test {
namespace {

using device::Stream;

void BeginStep(Stream, const device::BeginStepParams& p) {
  ++*p.plan;
  for (int row = 0; row < p.num_rows; ++row) {
    const uint32_t position = p.positions[row] = p.next_positions[row];
    const bool sits = position != device::kNoPosition;
    if (sits) ++p.next_positions[row];
    if (sits && p.sample_rows != nullptr) ++p.sample_rows[row].token_index;
    for (int i = 0; i < p.num_layers * p.num_kv_heads; ++i) {
      const size_t index =
          (static_cast<size_t>(i / p.num_kv_heads) * p.max_rows + row) * p.num_kv_heads + i % p.num_kv_heads;
      device::AttentionList* const lists = p.lists + index * p.lists_per_kv_head;
      device::AttentionList& list = lists[0];
      for (int l = 0; l < p.lists_per_kv_head && !sits; ++l) {
        lists[l].sinks = lists[l].selected_count = lists[l].recent_count = 0;
      }
      if (!sits && p.kv_destinations != nullptr) p.kv_destinations[index] = nullptr;
      if (!sits) continue;
      const uint32_t layer_window = p.layer_windows == nullptr ? 0 : p.layer_windows[i / p.num_kv_heads];
      if (layer_window > 0) {
        list.sinks = list.selected_count = 0;
        list.recent_begin = position + 1 > layer_window ? position + 1 - layer_window : 0;
      } else if (p.window == device::RecentWindow::kSliding) {
        const device::RowWindow& window = p.windows[row];
        const uint32_t anchor = position <= window.prompt_tokens
                                    ? position
                                    : std::max(position - position % window.reuse_interval, window.prompt_tokens);
        list.sinks = std::min(window.sinks, position + 1);
        list.recent_begin = RecentStart(anchor, window.recent_tokens, window.sinks, kBlockTokens);
      }
      list.recent_count = position + 1 > list.recent_begin ? position + 1 - list.recent_begin : 0;
      for (int l = 1; l < p.lists_per_kv_head; ++l) {
        lists[l].sinks = list.sinks;
        lists[l].recent_begin = list.recent_begin;
        lists[l].recent_count = list.recent_count;
        if (layer_window > 0) lists[l].selected_count = 0;
      }
      const uint32_t local = list.ring_base + position % list.ring_tokens;
      const size_t slot =
          size_t{p.pages[list.first_page + local / kSlotPageTokens]} * kSlotPageTokens + local % kSlotPageTokens;
      if (p.kv_destinations == nullptr) continue;
      p.kv_destinations[index] = static_cast<std::byte*>(p.slot_pool) + slot * p.row_bytes;
    }
  }
}

void Publish(Stream, const device::PublishParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    std::memcpy(static_cast<std::byte*>(p.to) + row * p.to_stride,
                static_cast<const std::byte*>(p.from) + row * p.from_stride, p.row_bytes);
  }
  Raise(nullptr, {.flag = p.flag, .value = p.value});
}

void RaiseAll(Stream stream, const device::ExchangePeer* peers, size_t flag, const uint32_t* value) {
  for (int i = 0; i < device::kMaxExchangePeers; ++i) {
    if (peers[i].inbox == nullptr) continue;
    Raise(stream, {.flag = reinterpret_cast<uint32_t*>(peers[i].inbox + flag), .value = value});
  }
}

}  // namespace

void SendRows(device::Stream stream, const device::SendRowsParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    if (p.regions[row] == nullptr) continue;
    std::memcpy(static_cast<std::byte*>(p.regions[row]) + p.to + row * p.row_bytes,
                static_cast<const std::byte*>(p.from) + row * p.row_bytes, p.row_bytes);
  }
  RaiseAll(stream, p.peers, p.flag, p.value);
}

void SignalAndWait(device::Stream stream, const device::RemoteFlagsParams& p) {
  RaiseAll(stream, p.peers, p.flag, p.value);
  for (int i = 0; i < device::kMaxExchangePeers; ++i) {
    const device::ExchangePeer& peer = p.peers[i];
    if (peer.inbox == nullptr) continue;
    Wait(stream, {.flag = peer.delta_flags + p.layer,
                  .value = p.value,
                  .abort = peer.abort,
                  .error = peer.error,
                  .timeout_us = p.timeout_us});
  }
}

void AddHostStepKernels(device::StepKernels& kernels) {
  kernels.begin_step = BeginStep;
  kernels.publish = Publish;
  kernels.send_rows = SendRows;
  kernels.signal_and_wait = SignalAndWait;
}

}  // namespace winnow::test
