#!/usr/bin/env bash
# Prompts layer by layer beside prompts in chunks on a running pair of GPUs: time to the first token, the memory of the
# inference rank's GPU, whether both give the same answers, and what a stream beside such a prompt sees.
#
#   tools/bench/gpu/serving/layered_prefill.sh [WINNOW] [MODEL] [UP_FLAGS...]
#
# WINNOW: the program (default: bin/winnow). MODEL: default synthetic:qwen3-14b. UP_FLAGS replace
# "--device=cuda --cache-device=cuda:1". $PROMPT tokens (default 16384), $RUNS (3) of each; $MODES (chunked layered).
# Prefill memory is by arithmetic that of one prompt: $TOKEN_BYTES (163840) of KV for each token, or $LAYERED_BYTES
# (24576) of one layer's KV and the residual. $TARGET: of the time between a stream's tokens, in ms, for the last part;
# 0 leaves it out.
set -euo pipefail
winnow=${1:-bin/winnow} model=${2:-synthetic:qwen3-14b}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --device=cuda --cache-device=cuda:1
source "$(dirname "$0")/cluster.sh"
prompt=${PROMPT:-16384} context=$((${PROMPT:-16384} + 256))

used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0; }
request() { # tokens output
  "$winnow" bench serve --protocol=grpc --server="$grpc" --requests=1 --input="$1" --output="$2" \
    --token-ids="${IDS:-1500}"
}
for mode in ${MODES:-chunked layered}; do
  bytes=${TOKEN_BYTES:-163840}
  [ $mode = layered ] && bytes=${LAYERED_BYTES:-24576}
  before=$(used)
  start_up $mode --model="$model" --budget=2048 --max-context=$context --max-running=8 --prefix-cache=false \
    --slot-memory="${SLOTS:-8GiB}" --prefill=$mode --prefill-memory=$((bytes * context)) \
    --tpot-target="${TARGET:-0}ms" "$@"
  echo "== $mode: $bytes bytes for each of $context tokens, $((bytes * context >> 20)) MiB"
  grep -hoE "weights .* available" "$out/$mode.log" | head -1
  request 2000 32 >/dev/null  # makes the link
  answer_ids $((prompt / 3)) >"$out/$mode.ids"
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0 -lms 20 >"$out/used" &
  watch=$!
  for _ in $(seq "${RUNS:-3}"); do request "$prompt" 32 | grep -E "^time " | head -1; done
  kill $watch
  echo "GPU memory, MiB: $before before, $(used) now, at most $(sort -n "$out/used" | tail -1) during the prompts"
  if [ "${TARGET:-0}" != 0 ]; then
    request 1000 100 | grep -E "inter-token|time per|between" | head -2 || true
    request 1000 "${STREAM:-1500}" >"$out/stream" &
    stream=$!
    sleep 0.5
    request "$prompt" 8 | grep -E "^time " | head -1
    wait $stream
    grep -vE "^ *$" "$out/stream" | head -12
  fi
  grep -hE "layer by layer|from GPU to GPU" "$out/$mode.log" | tail -2 || true
  stop_up
done
if [ -f "$out/chunked.ids" ] && [ -f "$out/layered.ids" ] && cmp "$out"/chunked.ids "$out"/layered.ids; then
  echo "answers to $((prompt / 3)) tokens: equal, $(head -c 60 "$out/chunked.ids") ..."
fi
