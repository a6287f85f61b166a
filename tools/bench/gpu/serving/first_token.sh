#!/usr/bin/env bash
# Time to the first token of long prompts on a running pair of GPUs, with where it goes, beside the engine's prefill.
#
#   tools/bench/gpu/serving/first_token.sh [WINNOW] [MODEL] [UP_FLAGS...]
#
# WINNOW: the program (default: bin/winnow). MODEL: default synthetic:qwen3-14b. UP_FLAGS replace
# "--device=cuda --cache-device=cuda:1". $LENGTHS (default "8000 32000"), $RUNS (2) of each; $ENGINE=0 leaves the engine
# out.
set -euo pipefail
winnow=${1:-bin/winnow} model=${2:-synthetic:qwen3-14b}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --device=cuda --cache-device=cuda:1
source "$(dirname "$0")/cluster.sh"

if [ "${ENGINE:-1}" = 1 ]; then
  "$winnow" bench engine --model="$model" --mode=fixed --batch=1 --context=8k --breakdown=false --prefill=8k,32k \
    --chunk="${CHUNK:-2048}" | grep -iE "prefill|[0-9]k " || true
fi
start_up up --model="$model" --budget=2048 --max-context=34000 --max-running=8 "$@"
grep -hE "GPU to GPU|host memory" "$out/up.log" | tail -3 || true

prompts=0  # no two of them begin alike
request() { # tokens
  "$winnow" bench serve --protocol=grpc --server="$grpc" --requests=1 --input="$1" --output=32 \
    --first-token-id=$((100 + 3000 * prompts)) --token-ids=3000
}
echo "== first request, 2000 tokens (makes the link)"
request 2000 | grep -E "^time "
for tokens in ${LENGTHS:-8000 32000}; do
  for run in $(seq "${RUNS:-2}"); do
    prompts=$((prompts + 1))  # here, as requests run in subshells
    echo "== $tokens tokens, run $run"
    "$winnow" timeline --server="$grpc" --seconds="$((2 + tokens / 12000))" --out="$out/trace_$tokens.json" \
      >"$out/timeline" &
    recorder=$!
    sleep 0.2
    request "$tokens" | grep -E "^time "
    wait $recorder
    sed 's/\(.\{60\}\).*/\1/' "$out/timeline"
  done
done
grep -hE "peer link|GPU to GPU" "$out/up.log" | tail -3 || true
