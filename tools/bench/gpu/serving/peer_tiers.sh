#!/usr/bin/env bash
# Sequences over a peer link whose rows lie in the cache rank's GPU, in pinned host memory, or that go by frames because there
# is no room for them: time between tokens while all of them decode, and where their rows are.
#
#   tools/bench/gpu/serving/peer_tiers.sh [WINNOW] [MODEL] [UP_FLAGS...]
#
# WINNOW: the program (default: bin/winnow). MODEL: default synthetic:qwen3-14b. UP_FLAGS replace
# "--device=cuda --cache-device=cuda:1". $SEQUENCES (6) of $PROMPT (16000) tokens, $OUTPUT (160) more each (a quarter by
# frames). $SMALL (17GiB) of --cache-device-memory has no room for all of them, $LEAST (9GiB) for keys alone, $HOST
# (12GiB) of --cache-device-host-memory for the rest. $CASES: of "gpu both host frames".
set -euo pipefail
winnow=${1:-bin/winnow} model=${2:-synthetic:qwen3-14b}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --device=cuda --cache-device=cuda:1
source "$(dirname "$0")/cluster.sh"
prompt=${PROMPT:-16000} output=${OUTPUT:-160} sequences=${SEQUENCES:-6}

scrape() { # address, names
  python3 -c "import sys, urllib.request as r; sys.stdout.write(r.urlopen('http://$1/metrics').read().decode())" |
    grep -hE "$2" || true
}
for case in ${CASES:-gpu both host frames}; do
  flags=()
  case $case in
    both) flags=(--cache-device-memory="${SMALL:-17GiB}" --cache-device-host-memory="${HOST:-12GiB}") ;;
    host) flags=(--cache-device-memory="${LEAST:-9GiB}" --cache-device-host-memory="${HOST:-12GiB}") ;;
    frames) flags=(--cache-device-memory="${SMALL:-17GiB}") ;;
  esac
  start=$SECONDS
  start_up "$case" --model="$model" --budget=2048 --max-context=$((prompt + 640)) --max-running=8 --prefix-cache=false \
    "${flags[@]}" "$@"
  IFS=, read -r _ inference cache <<<"$metrics"
  # Makes the link.
  "$winnow" bench serve --protocol=grpc --server="$grpc" --requests=1 --input=2000 --output=8 --seed=9 >/dev/null
  echo "== $case: ${flags[*]:-as much as there is}, link up after $((SECONDS - start)) s"
  tokens=$output
  [ $case != frames ] || tokens=$((output / 4))
  "$winnow" bench serve --protocol=grpc --server="$grpc" --requests="$sequences" --concurrency="$sequences" \
    --input="$prompt" --output="$tokens" --first-token-id=100 --token-ids=30000 >"$out/bench" &
  bench=$!
  for _ in $(seq 400); do
    kill -0 $bench 2>/dev/null || break
    scrape "$cache" '^winnow_peer_copy_(capacity|used)_bytes' >>"$out/$case.copies"
    sleep 0.2
  done
  wait $bench
  grep -hE "milliseconds|^time|inter-token|failed|^output" "$out/bench"
  # The most of each.
  awk '{ if ($NF > most[$1]) most[$1] = $NF }
    END { for (name in most) printf "%s at most %.2f GiB\n", name, most[name] / 2^30 }' "$out/$case.copies" | sort
  answer_ids $((prompt / 3)) >"$out/$case.ids"
  first=${first:-$case}
  if cmp "$out/$first.ids" "$out/$case.ids"; then
    echo "answer to $((prompt / 3)) tokens: that of $first, $(head -c 60 "$out/$case.ids") ..."
  fi
  scrape "$cache" '^winnow_peer_batch_rows_total'
  scrape "$inference" '^winnow_(peer|decode)_steps_total'
  grep -hE "from GPU to GPU|by frames|pinned|pushes" "$out/$case.log" | tail -3 || true
  stop_up
done
