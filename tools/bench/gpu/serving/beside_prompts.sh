#!/usr/bin/env bash
# What clients see where prompts arrive beside running answers on one GPU: times between the answers' tokens before and
# beside them, and the prompts' first tokens beside those of as many prompts alone.
#
#   tools/bench/gpu/serving/beside_prompts.sh [BIN] [UP_FLAGS...]
#
# BIN: folder of the program winnow (default: bin). UP_FLAGS replace "--device=cuda:0". $MODEL (synthetic:qwen3-8b),
# $SELECTIONS ("dense winnow") of the requests, one after the other, $ANSWERS (8) of $TOKENS (2600) tokens behind
# $ANSWER_CONTEXT (16500), $PROMPTS (16) of $CONTEXT (16000) that arrive $AT_S (10) seconds later, when all of the
# answers must have begun. $OUT: folder for the runs' JSON. Lengths for trials without a GPU: $MAX_CONTEXT (20000),
# $TOKEN_IDS (3000: different ids in a prompt).
set -euo pipefail
winnow=${1:-bin}/winnow
shift $(($# < 1 ? $# : 1))
[ $# -gt 0 ] || set -- --device=cuda:0
source "$(dirname "$0")/cluster.sh"
context=${CONTEXT:-16000} prompts=${PROMPTS:-16} token_ids=${TOKEN_IDS:-3000} loads=0

load() { # load NAME BENCH_FLAG...   no two prompts of a run begin alike
  loads=$((loads + 1))
  "$winnow" bench serve --protocol=grpc --server="$grpc" --first-token-id=$((100 + token_ids * loads)) \
    --token-ids="$token_ids" --quiet=true --out="$out/$1.json" "${@:2}" >"$out/$1.txt"
}
requests() { # requests NUMBER AT_S INPUT OUTPUT
  for _ in $(seq "$1"); do
    echo "{\"timestamp\": $(($2 * 1000)), \"input_length\": $3, \"output_length\": $4}"
  done
}

start_up up --model="${MODEL:-synthetic:qwen3-8b}" --budget=2048 --max-context="${MAX_CONTEXT:-20000}" \
  --max-running=32 --prefix-cache=false "$@"
grep -o "prompts b[a-z]* decode steps" "$out/up.log" | sort -u || true
load first --requests=1 --input=1000 --output=8
for selection in ${SELECTIONS:-dense winnow}; do
  requests "$prompts" 0 "$context" 1 >"$out/alone.jsonl"
  load alone --trace="$out/alone.jsonl" --requests="$prompts" --selection="$selection"
  {
    requests "${ANSWERS:-8}" 0 "${ANSWER_CONTEXT:-16500}" "${TOKENS:-2600}"
    requests "$prompts" "${AT_S:-10}" "$context" 1
  } >"$out/$selection.jsonl"
  load "$selection" --trace="$out/$selection.jsonl" --requests=$((${ANSWERS:-8} + prompts)) --selection="$selection"
  python3 - "$selection" "$out/alone.json" "$out/$selection.json" <<'PY'
import json, sys

alone, beside = (json.load(open(file))["requests"] for file in sys.argv[2:4])
answers = [r["token_seconds"] for r in beside if len(r["token_seconds"]) > 16]
prompts = [r for r in beside if len(r["token_seconds"]) == 1]
begun, sent = max(a[16] for a in answers), min(r["sent_seconds"] for r in prompts)
first_tokens = lambda requests: sorted(r["token_seconds"][0] - r["sent_seconds"] for r in requests)
ended = max(r["token_seconds"][0] for r in prompts)
if begun >= sent or min(a[-1] for a in answers) < ended:
    sys.exit(f"answers had begun at {begun:.1f} s, prompts were sent at {sent:.1f} s and the last had its first token "
             f"at {ended:.1f} s, when an answer had ended at {min(a[-1] for a in answers):.1f} s")

def figures(name, first, last):
    gaps = sorted(1e3 * (b - a) for t in answers for a, b in zip(t, t[1:]) if b > first and a <= last)
    at = lambda quantile: gaps[int(quantile * (len(gaps) - 1))]
    print(f"{sys.argv[1]}, {name}: ms between tokens p50 {at(.5):.2f} p90 {at(.9):.2f} p99 {at(.99):.2f} "
          f"most {gaps[-1]:.2f}")
    return at

p50, p99 = figures("before", begun, sent)(.5), figures("beside", sent, ended)(.99)
one, many = first_tokens(alone), first_tokens(prompts)
mean = lambda values: sum(values) / len(values)
print(f"{sys.argv[1]}: p99 beside is {p99 / p50:.2f} of p50 before; first tokens of {len(many)} prompts after "
      f"{mean(many):.2f} s in the mean and {many[-1]:.2f} at last, alone {mean(one):.2f} and {one[-1]:.2f}: "
      f"{mean(many) / mean(one):.2f} and {many[-1] / one[-1]:.2f} of these")
PY
done
stop_up
