#!/usr/bin/env bash
# Runs every benchmark, one after the other; about ten minutes on two cores.
#
#   tools/bench/run_all.sh BUILD_DIR [MODEL_DIR]     the demo model, or WINNOW_BENCH_MODEL
set -euo pipefail
build=${1:?usage: tools/bench/run_all.sh BUILD_DIR [MODEL_DIR]}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
model=${2:-${WINNOW_BENCH_MODEL:-$root/deploy/models/demo}}

headline() { printf '\n== %s\n' "$*"; }

headline "machine"
lscpu | grep -E '^(Model name|CPU\(s\)|L2 cache|L3 cache|Hypervisor vendor):'
uname -sr
git -C "$root" log -1 --format='commit %h' 2>/dev/null || true
uptime

headline "kernel_bench: kernels beside what the machine can do"
"$build/tools/bench/kernel_bench"
headline "forward_bench: the forward pass alone, $model"
"$build/tools/bench/forward_bench" "$model" --seconds 1
headline "transport_bench: the transports between two cores"
"$build/tools/bench/transport_bench" 0.5
headline "serve_bench: through HTTP"
"$build/tools/bench/serve_bench" --model="$model" --patience=20
uptime
