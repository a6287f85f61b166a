// winnow-link-bench: two processes, a GPU each, and the p2p link between them. What a flag costs, how fast rows are
// pushed, how long a small delta takes from "slots assigned" to "rows usable", and that a peer which is killed in the
// middle of a step holds no GPU.
#include <sys/wait.h>

#include <cstdio>
#include <random>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tools/bench/gpu/links/link_sections.h"

ABSL_FLAG(bool, kill_peer, false, "kill the sender in the middle of a step and see what the receiver does");
ABSL_FLAG(bool, watch_socket, true, "take the end of the socket as a sign of death, beside the end of the process");
ABSL_FLAG(bool, nccl, false, "use an NCCL pair instead");
ABSL_FLAG(int, sender_gib, 0, "device memory that the sender holds besides, in GiB");

namespace winnow {
namespace {

int Main() {
  LinkProcess process = ForkSender();
  absl::StatusOr<LinkEnds> ends = OpenLink(process, RegionBytes(process.role), absl::GetFlag(FLAGS_watch_socket));
  const bool receives = process.role == LinkRole::kReceiver;
  if (!ends.ok()) {
    if (receives) std::printf("%s\n", std::string(ends.status().message()).c_str());
    return absl::IsUnavailable(ends.status()) ? 77 : 1;  // 77: skipped
  }
  GpuReport report;
  {
    GpuContext gpu(*ends->table, *ends->device, report, std::random_device()());
    report.Note(receives ? "receiver" : "sender", ends->device->info().name + " " + ends->device->info().pci_bus_id);
    LinkBench bench(process, *ends, gpu);
    const bool nccl = absl::GetFlag(FLAGS_nccl);
    if (absl::GetFlag(FLAGS_kill_peer)) {
      nccl ? bench.RunNcclKill() : bench.RunKill(absl::GetFlag(FLAGS_sender_gib));
    } else {
      nccl ? bench.RunNccl() : bench.Run();
      // One after the other, the sender last: mapped memory is let go before its owner frees it.
      if (receives) process.socket.Barrier();
    }
  }
  report.PrintTable();
  std::fflush(stdout);
  if (!receives) process.socket.Barrier();
  if (!absl::GetFlag(FLAGS_kill_peer)) {
    ends->link.reset();
    process.socket.Barrier();
    if (receives) waitpid(process.child, nullptr, 0);
  }
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("times the p2p link between two processes with a GPU each");
  absl::ParseCommandLine(argc, argv);
  return winnow::Main();
}
