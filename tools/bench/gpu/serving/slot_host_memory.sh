#!/usr/bin/env bash
# One GPU whose slots hold a few long sequences: dense attention, with as many as fit, beside selection in place with
# more of them, whose rows lie in host memory (--slot-host-memory). Then whether answers are those of rows in the GPU's
# memory.
#
#   tools/bench/gpu/serving/slot_host_memory.sh [WINNOW] [MODEL] [UP_FLAGS...]
#
# WINNOW: the program (default: bin/winnow). MODEL: default synthetic:qwen3-8b. $PROMPT tokens (32000), $OUTPUT (500),
# $SLOTS in the GPU's memory (17.75GiB), $DENSE streams that fit there (4), $STREAMS with $HOST more (10, 36GiB),
# $IDS different tokens (30000), $CACHE for the copies of the cache rank (52GiB), $SELECTION of these. $CASES (dense tiered answers). $SMALL_SLOTS
# (512MiB), $SMALL (5000): slots and a prompt whose rows they cannot hold.
set -euo pipefail
winnow=${1:-bin/winnow} model=${2:-synthetic:qwen3-8b}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --device=cuda:0 --select-in-place=on
source "$(dirname "$0")/cluster.sh"
prompt=${PROMPT:-32000} output=${OUTPUT:-500} selection=${SELECTION:-winnow,pool_factor=2}

scrape() { # address, names
  python3 -c "import sys, urllib.request as r; sys.stdout.write(r.urlopen('http://$1/metrics').read().decode())" |
    grep -hE "$2" || true
}
rank() { scrape "$(cut -d, -f2 <<<"$metrics")" "$1"; }

# Tokens per second between the first token of the last stream and the last token of the first.
together() { # FILE STREAMS
  awk -v streams="$2" '
    /"sent_seconds"/ { ++request; number = 0 }
    /"token_seconds": \[/ { inside = 1; next }
    /\]/ { inside = 0 }
    inside { at[request, ++number] = $1 + 0; count[request] = number }
    END {
      for (r in count) { if (at[r, 1] > first) first = at[r, 1]; if (!last || at[r, count[r]] < last) last = at[r, count[r]] }
      for (r in count) for (i = 2; i <= count[r]; ++i) if (at[r, i] > first && at[r, i] <= last) ++tokens
      if (last > first) printf "%d streams together: %.1f tokens/s, %.2f ms a step, over %.1f s\n", streams,
        tokens / (last - first), 1e3 * streams * (last - first) / tokens, last - first
    }' "$1"
}
measure() { # NAME STREAMS UP_FLAG...
  start_up "$1" --model="$model" --budget=2048 --max-context=$((prompt + output + 64)) --prefix-cache=false \
    --cache-memory="${CACHE:-52GiB}" "${@:3}"
  echo "== $1: $(grep -hoE "weights .* available" "$out/$1.log" | tail -1)"
  "$winnow" bench serve --protocol=grpc --server="$grpc" --requests=1 --input=500 --output=8 --seed=9 >/dev/null
  "$winnow" bench serve --protocol=grpc --server="$grpc" --requests="$2" --concurrency="$2" --input="$prompt" \
    --output="$output" --token-ids="${IDS:-30000}" --quiet=true --out="$out/$1.json" | grep -E "^time|inter-token|failed|^output" &
  local bench=$!
  while kill -0 $bench 2>/dev/null; do
    rank '^winnow_(host_slot_pages|local_sequences)' >>"$out/$1.pages"
    sleep 0.5
  done
  wait $bench || true
  together "$out/$1.json" "$2"
  awk '{ if ($NF > most[$1]) most[$1] = $NF } END { for (name in most) print name " at most " most[name] }' "$out/$1.pages" |
    grep -v free || true
  rank '^winnow_(selection_(lookups|hits)_total|rank_prompt_tokens_total)'
  grep -hE " [WE] " "$out/$1.log" | grep -v "HTTP connections" | tail -3 || true
  stop_up
}
answers() { # NAME UP_FLAG...
  start_up "$1" --model="$model" --budget=1024 --max-context="${SMALL_CONTEXT:-6144}" --max-running=4 --cache-memory=8GiB "${@:2}"
  for of in winnow exact-token dense; do
    answer_ids "${SMALL:-5000}" "$of" >"$out/$1.$of.ids"
  done
  rank '^winnow_(selection_(lookups|hits)|local_steps)_total'
  stop_up
}

for case in ${CASES:-dense tiered answers}; do
  case $case in
    dense) measure dense "${DENSE:-4}" "$@" --selection=dense --max-running="${DENSE:-4}" --slot-memory="${SLOTS:-17.75GiB}" ;;
    tiered) measure tiered "${STREAMS:-10}" "$@" --selection="$selection" --max-running="${STREAMS:-10}" \
      --slot-memory="${SLOTS:-17.75GiB}" --slot-host-memory="${HOST:-36GiB}" ;;
    front) measure front "${DENSE:-4}" "$@" --selection="$selection" --max-running="${DENSE:-4}" ;;
    answers)
      answers roomy "$@" --selection="$selection"
      answers behind "$@" --selection="$selection" --slot-memory="${SMALL_SLOTS:-512MiB}" --slot-host-memory=4GiB
      for of in winnow exact-token dense; do
        if cmp "$out/roomy.$of.ids" "$out/behind.$of.ids"; then
          echo "answer of $of to ${SMALL:-5000} tokens: the same, $(head -c 60 "$out/behind.$of.ids") ..."
        fi
      done
      ;;
  esac
done
