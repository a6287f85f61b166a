#!/usr/bin/env bash
# One GPU whose slots hold a few long sequences: dense attention, with as many as fit, beside selection in place with
# more of them, whose rows lie in host memory (--slot-host-memory). Then whether answers are those of rows in the GPU's
# memory.
#
#   tools/bench/gpu/serving/slot_host_memory.sh [WINNOW] [MODEL] [UP_FLAGS...]
#
# WINNOW: the program (default: bin/winnow). MODEL: default synthetic:qwen3-8b. $PROMPT tokens (32000), whose rows are
# there before anything is measured, $OUTPUT (400), $IDS different tokens (30000). $SLOTS in the GPU's memory (18GiB),
# $DENSE streams that fit there (4), $STREAMS with $HOST more (10, 40GiB), $CACHE for the copies of the cache rank
# (60GiB), $BUDGET and $POOL_FACTOR of the server (2048, 4), $SELECTIONS of requests ("winnow winnow,budget=512").
# $CASES (dense tiered answers), $ANSWERS: the selections of the last. $SMALL_SLOTS (512MiB), $SMALL (5000),
# $SMALL_CONTEXT (6144): slots and a prompt whose rows they cannot hold.
set -euo pipefail
winnow=${1:-bin/winnow} model=${2:-synthetic:qwen3-8b}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --device=cuda:0 --select-in-place=on
source "$(dirname "$0")/cluster.sh"
prompt=${PROMPT:-32000} output=${OUTPUT:-400}
answers=${ANSWERS:-winnow winnow,predictor=depth exact-token dense}

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
# measure NAME STREAMS SELECTIONS UP_FLAG...
measure() {
  local name=$1 streams=$2 selections=$3 selection number=0 bench
  shift 3
  start_up "$name" --model="$model" --max-running="$streams" --max-context=$((prompt + output + 64)) \
    --slot-memory="${SLOTS:-18GiB}" --cache-memory="${CACHE:-60GiB}" "$@"
  echo "== $name: $(grep -hoE "weights .* available" "$out/$name.log" | tail -1)"
  load() { # OUTPUT BENCH_FLAG...
    "$winnow" bench serve --protocol=grpc --server="$grpc" --requests="$streams" --concurrency="$streams" \
      --input="$prompt" --output="$1" --token-ids="${IDS:-30000}" --quiet=true "${@:2}"
  }
  load 8 | grep -E "^time to first|failed"
  for selection in $selections; do
    number=$((number + 1))
    counters before
    load "$output" --selection="$selection" --out="$out/$name.json" | grep -E "inter-token|failed|^output" &
    bench=$!
    while kill -0 $bench 2>/dev/null; do
      rank '^winnow_(host_slot_pages|local_sequences)\{' | grep -v free >>"$out/$name.$number"
      sleep 0.5
    done
    wait $bench || true
    echo "$selection, $(together "$out/$name.json" "$streams")"
    awk '{ if ($NF > most[$1]) most[$1] = $NF } END { for (name in most) print name " at most " most[name] }' "$out/$name.$number"
    counters after
  done
  grep -hE " [WE] " "$out/$name.log" | grep -v "HTTP connections" | tail -3 || true
  stop_up
}
# Rows that were looked up among staged ones, and found, since the last time.
counters() {
  local lookups hits
  lookups=$(rank '^winnow_selection_lookups_total' | awk '{ print $NF }')
  hits=$(rank '^winnow_selection_hits_total' | awk '{ print $NF }')
  [ "$1" = before ] || awk -v l=$((lookups - last_lookups)) -v h=$((hits - last_hits)) \
    'BEGIN { if (l > 0) printf "staged already: %.3f of %d selected rows of measured steps\n", h / l, l }'
  last_lookups=$lookups last_hits=$hits
}
answers() { # NAME UP_FLAG...
  start_up "$1" --model="$model" --max-context="${SMALL_CONTEXT:-6144}" --max-running=4 --cache-memory=8GiB "${@:2}"
  for of in $answers; do
    answer_ids "${SMALL:-5000}" "$of" >"$out/$1.$of.ids"
  done
  rank '^winnow_(selection_(lookups|hits)|local_steps)_total'
  stop_up
}

sparse=(--selection=winnow --budget="${BUDGET:-2048}" --pool-factor="${POOL_FACTOR:-4}")
for case in ${CASES:-dense tiered answers}; do
  case $case in
    dense) measure dense "${DENSE:-4}" dense "$@" --selection=dense ;;
    tiered) measure tiered "${STREAMS:-10}" "${SELECTIONS:-winnow winnow,budget=512}" "$@" "${sparse[@]}" \
      --slot-host-memory="${HOST:-40GiB}" ;;
    answers)
      sparse=(--selection=winnow --budget=1024 --pool-factor=2)
      answers roomy "$@" "${sparse[@]}"
      answers behind "$@" "${sparse[@]}" --slot-memory="${SMALL_SLOTS:-512MiB}" --slot-host-memory=4GiB
      for of in $answers; do
        if cmp "$out/roomy.$of.ids" "$out/behind.$of.ids"; then
          echo "answer of $of to ${SMALL:-5000} tokens: the same, $(head -c 60 "$out/behind.$of.ids") ..."
        fi
      done
      ;;
  esac
done
