#!/usr/bin/env bash
# Runs a command while a cluster serves: with_cluster.sh WINNOW MODEL WORK_FOLDER COMMAND...
# The command finds the addresses in WINNOW_HTTP and WINNOW_GRPC, the program in WINNOW, and a folder for its files in WORK.
set -euo pipefail
winnow=$1 model=$2 work=$3
shift 3
mkdir -p "$work"
coproc up { exec "$winnow" up --model "$model" --http=127.0.0.1:0 --grpc=127.0.0.1:0 --metrics=127.0.0.1:0 \
  --budget=256 --max-context=4096 2>"$work/up.log"; }
up_pid=$up_PID
trap 'kill "$up_pid" 2>/dev/null; wait "$up_pid" 2>/dev/null || true' EXIT
read -r -t 60 ready <&"${up[0]}" || { tail -n 20 "$work/up.log"; echo "the cluster did not start"; exit 1; }
field() { sed -n "s/.* $1=\([^ ]*\).*/\1/p" <<<"$ready"; }
WINNOW_HTTP=$(field http) WINNOW_GRPC=$(field grpc)
export WINNOW=$winnow WORK=$work WINNOW_HTTP WINNOW_GRPC
"$@"
