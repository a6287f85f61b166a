#!/usr/bin/env bash
# Time to the first token of a prompt that the prefix cache has all of, beside the same prompt's first time, with where it
# goes; every round is a prompt of its own.
#
#   tools/bench/gpu/serving/cached_prefix.sh [WINNOW] [MODEL] [UP_FLAGS...]
#
# WINNOW: the program (default: bin/winnow). MODEL: default synthetic:qwen3-14b. UP_FLAGS replace
# "--device=cuda --cache-device=cuda:1". $LENGTHS (default "8000 32000"), $RUNS (2) of each, $TOKEN_IDS (3000).
set -euo pipefail
winnow=${1:-bin/winnow} model=${2:-synthetic:qwen3-14b}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --device=cuda --cache-device=cuda:1
source "$(dirname "$0")/cluster.sh"

start_up up --model="$model" --budget=2048 --max-context=34000 --max-running=8 "$@"
grep -hE "GPU to GPU|go by frames" "$out/up.log" | tail -1 || true

prompts=0 token_ids=${TOKEN_IDS:-3000}
request() { # tokens   of the prompt that $prompts names
  "$winnow" bench serve --protocol=grpc --server="$grpc" --requests=1 --input="$1" --output=32 \
    --first-token-id=$((100 + token_ids * prompts)) --token-ids="$token_ids" | grep -E "^prompt|^time|^inter"
}
request 2000 >/dev/null # makes the link
for tokens in ${LENGTHS:-8000 32000}; do
  for run in $(seq "${RUNS:-2}"); do
    prompts=$((prompts + 1))
    echo "== $tokens tokens, run $run: first time"
    request "$tokens"
    echo "== again"
    "$winnow" timeline --server="$grpc" --seconds=2 --out="$out/cached_$tokens.json" >"$out/timeline" &
    recorder=$!
    sleep 0.2
    request "$tokens"
    wait $recorder
    sed 's/\(.\{60\}\).*/\1/' "$out/timeline"
  done
done
grep -hE "has failed|GPU to GPU|rror" "$out/up.log" | grep -v "starts as" | tail -3 || true
