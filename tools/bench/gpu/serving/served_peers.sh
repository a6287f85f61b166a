#!/usr/bin/env bash
# What clients see of decode steps from GPU to GPU (two GPUs of one host): larger batches, streams beside a long prompt
# with and without a target for their tokens, and arrivals at two rates, replayed on the serving ladder's clock.
#
#   tools/bench/gpu/serving/served_peers.sh [BIN] [MODEL] [UP_FLAGS...]
#
# BIN: folder of the programs winnow and serving_ladder (default: bin). MODEL: default synthetic:qwen3-14b. UP_FLAGS
# replace "--device=cuda --cache-device=cuda:1". $ONLY (default "batches ladder beside"): what to measure. $OUT: folder
# for the runs' JSON. Lengths for trials without a GPU: $CONTEXT (8000), $PROMPT (16000), $BATCHES ("8 16"),
# $STREAM_TOKENS (750) with a prompt after $PROMPT_S (4.5), $TARGET_TOKENS (1000) with two after $PACED_S ("8 15"),
# $TARGET_US (three times the mean that the streams alone have, measured without a target first), $MAX_CONTEXT (20000),
# $LADDER_INPUT (4k-6k), $TOKEN_IDS (3000: different ids in a prompt).
set -euo pipefail
bin=${1:-bin} winnow=${1:-bin}/winnow model=${2:-synthetic:qwen3-14b}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --device=cuda --cache-device=cuda:1
source "$(dirname "$0")/cluster.sh"
token_ids=${TOKEN_IDS:-3000} context=${CONTEXT:-8000} prompt=${PROMPT:-16000}
prompts=0

start() { # start UP_FLAG...
  start_up up --model="$model" --budget=2048 --max-context="${MAX_CONTEXT:-20000}" --max-running=16 \
    --prefix-cache=false "$@"
  load first --requests=1 --input=2000 --output=32 >/dev/null # makes the link
}
stop() {
  grep -E "by frames|peer link|rror" "$out/up.log" | grep -v "starts as" | tail -5 || true
  stop_up
}
load() { # load NAME BENCH_FLAG...   no two prompts of a section begin alike
  prompts=$((prompts + 1))
  "$winnow" bench serve --protocol=grpc --server="$grpc" --first-token-id=$((100 + token_ids * prompts)) \
    --token-ids="$token_ids" --out="$out/$1.json" "${@:2}"
}
arrivals() { # arrivals FILE   "request sent first_of_its_tokens number token_s" of each token
  awk '/"sent_seconds"/ { ++request; sent = $2 + 0 }
       /"token_seconds": \[/ { inside = 1; number = 0; next }
       /\]/ { inside = 0 }
       inside { print request, sent, ++number, $1 + 0 }' "$1"
}
figures() { # figures NAME   of milliseconds, one a line
  sort -n | awk -v name="$1" '{ value[NR] = $1; sum += $1 }
    END { if (NR) printf "%-24s mean %8.2f p50 %8.2f p99 %8.2f most %8.2f of %d gaps\n", name, sum / NR,
            value[1 + int(0.5 * (NR - 1))], value[1 + int(0.99 * (NR - 1))], value[NR], NR }'
}
gaps() { # gaps FILE FIRST_S LAST_S [touch]   of long answers, between tokens that both came in between, or one of them
  arrivals "$1" | awk -v first="$2" -v last="$3" -v touch="${4:+1}" '
    { count[$1] = $3; at[$1, $3] = $4 }
    END { for (r in count) if (count[r] > 100) for (i = 2; i <= count[r]; ++i)
            if (touch ? at[r, i] > first && at[r, i - 1] <= last : at[r, i - 1] > first && at[r, i] <= last)
              print 1e3 * (at[r, i] - at[r, i - 1]) }'
}

batches() {
  local batch
  for batch in ${BATCHES:-8 16}; do
    load "batch$batch" --requests="$batch" --concurrency="$batch" --input="$context" --output=120 | grep -E "answered|failed" || true
    local file="$out/batch$batch.json"
    # While all answers decode.
    read -r first last < <(arrivals "$file" | awk '$3 == 1 && $4 > first { first = $4 } { end[$1] = $4 }
      END { last = 1e9; for (r in end) if (end[r] < last) last = end[r]; print first, last }')
    gaps "$file" "$first" "$last" | figures "$batch x $context"
  done
}

ladder() {
  local rate
  for rate in ${RATES:-1:8 2:16}; do
    echo "== ${rate%:*} requests/s"
    load "rate${rate%:*}" --requests="${rate#*:}" --rate="${rate%:*}" --input="${LADDER_INPUT:-4k-6k}" --output=60-100 --seed=4
    "$bin/serving_ladder" --replay "$out/rate${rate%:*}.json" --system "+ predicted queries" --inject 2048 || true
  done
}

# streams NAME TOKENS AT_S...   four answers of TOKENS tokens, and prompts beside them
streams() {
  local at_s
  for _ in 1 2 3 4; do
    echo "{\"timestamp\": 0, \"input_length\": $context, \"output_length\": $2}"
  done >"$out/$1.jsonl"
  for at_s in "${@:3}"; do
    echo "{\"timestamp\": $(awk -v s="$at_s" 'BEGIN { print 1000 * s }'), \"input_length\": $prompt, \"output_length\": 4}"
  done >>"$out/$1.jsonl"
  load "$1" --trace="$out/$1.jsonl" --requests=$(($# + 2)) | grep -E "answered|failed" || true
  local file="$out/$1.json"
  # Between what: all streams run (16 tokens of each), a prompt is sent, its first token, ..., the first stream ends.
  arrivals "$file" | awk '{ count[$1] = $3; sent[$1] = $2; at[$1, $3] = $4 }
    END { end = 1e9
      for (r in count) if (count[r] > 100) { if (at[r, 16] > begin) begin = at[r, 16]; if (at[r, count[r]] < end) end = at[r, count[r]] }
      previous = begin; name = "before"
      for (r = 1; r <= 100; ++r) if (r in count && count[r] <= 100) {
        ++n; print name, previous, sent[r]; print "prompt" n, sent[r], at[r, 1]; previous = at[r, 1]; name = "after" n }
      print name, previous, end }' >"$out/$1.phases"
  while read -r phase first last; do
    case $phase in
      prompt*)
        gaps "$file" "$first" "$last" touch | figures "$1: $phase"
        awk -v a="$first" -v b="$last" 'BEGIN { printf "%26s first token after %.2f s\n", "", b - a }'
        ;;
      *) gaps "$file" "$first" "$last" | figures "$1: $phase" ;;
    esac
  done <"$out/$1.phases"
}

for section in ${ONLY:-batches ladder beside}; do
  case $section in
    batches | ladder) [ -n "$up" ] || start "$@"; "$section" ;;
    beside)
      target=${TARGET_US:-}
      if [ -z "$target" ]; then
        [ -n "$up" ] || start "$@"
        streams whole "${STREAM_TOKENS:-750}" "${PROMPT_S:-4.5}" | tee "$out/whole.txt"
        target=$(awk '/whole: before/ { print int(3000 * $4) }' "$out/whole.txt")
      fi
      [ -z "$up" ] || stop
      start "$@" --tpot-target="${target}us"
      echo "== --tpot-target=${target}us"
      # shellcheck disable=SC2086
      streams target "${TARGET_TOKENS:-1000}" ${PACED_S:-8 15}
      ;;
  esac
done
stop
