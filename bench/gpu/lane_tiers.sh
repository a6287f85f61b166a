#!/usr/bin/env bash
# Sequences on a lane whose rows lie in the cache rank's GPU, in pinned host memory, or that go by frames because there
# is no room for them: time between tokens while all of them decode, and where their rows are.
#
#   bench/gpu/lane_tiers.sh [WINNOW] [MODEL] [UP_FLAGS...]
#
# WINNOW: the program (default: bin/winnow). MODEL: default synthetic:qwen3-14b. UP_FLAGS replace
# "--device=cuda --cache-device=cuda:1". $SEQUENCES (6) of $PROMPT (16000) tokens, $OUTPUT (160) more each (a quarter by frames). $SMALL (17GiB)
# of --cache-device-memory has no room for all of them, $LEAST (9GiB) for keys alone, $HOST (12GiB) of
# --cache-device-host-memory for the rest. $CASES: of "gpu both host frames".
set -euo pipefail
winnow=${1:-bin/winnow} model=${2:-synthetic:qwen3-14b}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- --device=cuda --cache-device=cuda:1
out=$(mktemp -d)
prompt=${PROMPT:-16000} output=${OUTPUT:-160} sequences=${SEQUENCES:-6}
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

scrape() { # address, names
  { curl -sf "http://$1/metrics" || python3 -c "import sys, urllib.request as r; sys.stdout.write(r.urlopen('http://$1/metrics').read().decode())"; } |
    grep -hE "$2" || true
}
for case in ${CASES:-gpu both host frames}; do
  flags=()
  case $case in
    both) flags=(--cache-device-memory="${SMALL:-17GiB}" --cache-device-host-memory="${HOST:-12GiB}") ;;
    host) flags=(--cache-device-memory="${LEAST:-9GiB}" --cache-device-host-memory="${HOST:-12GiB}") ;;
    frames) flags=(--cache-device-memory="${SMALL:-17GiB}") ;;
  esac
  "$winnow" up --model="$model" --budget=2048 --max-context=$((prompt + 640)) --max-running=8 --prefix-cache=false \
    --http=127.0.0.1:0 --grpc=127.0.0.1:0 --metrics=127.0.0.1:0 "${flags[@]}" "$@" >"$out/$case.out" 2>"$out/$case.log" &
  up=$!
  start=$SECONDS
  for _ in $(seq 600); do
    grep -q ^ready "$out/$case.out" && break
    kill -0 $up || { tail -20 "$out/$case.log"; exit 1; }
    sleep 0.1
  done
  grpc=$(sed -n 's/^ready.* grpc=\([^ ]*\).*/\1/p' "$out/$case.out")
  http=$(sed -n 's/^ready.* http=\([^ ]*\).*/\1/p' "$out/$case.out")
  # Of the router, the inference rank and the cache rank.
  IFS=, read -r _ inference cache < <(sed -n 's/^ready.* metrics=\([^ ]*\).*/\1/p' "$out/$case.out")
  # Makes the link.
  "$winnow" bench serve --protocol=grpc --address="$grpc" --requests=1 --input=2000 --output=8 --seed=9 >/dev/null
  echo "== $case: ${flags[*]:-as much as there is}, link up after $((SECONDS - start)) s"
  tokens=$output
  [ $case != frames ] || tokens=$((output / 4))
  "$winnow" bench serve --protocol=grpc --address="$grpc" --requests="$sequences" --concurrency="$sequences" \
    --input="$prompt" --output="$tokens" --first-token-id=100 --token-ids=30000 >"$out/bench" &
  bench=$!
  for _ in $(seq 400); do
    kill -0 $bench 2>/dev/null || break
    scrape "$cache" '^winnow_mirror_(capacity|used)_bytes' >>"$out/$case.mirrors"
    sleep 0.2
  done
  wait $bench
  grep -hE "milliseconds|^time|inter-token|failed|^output" "$out/bench"
  # The most of each.
  awk '{ if ($NF > most[$1]) most[$1] = $NF } END { for (name in most) printf "%s at most %.2f GiB\n", name, most[name] / 2^30 }' "$out/$case.mirrors" | sort
  python3 - "$http" $((prompt / 3)) >"$out/$case.ids" <<'PY'
import json, sys, urllib.request
address, tokens = sys.argv[1], int(sys.argv[2])
body = {"prompt": [(i * i * 7 + i * 13) % 3000 + 100 for i in range(tokens)], "max_tokens": 48, "temperature": 0,
        "return_token_ids": True, "ignore_eos": True}
request = urllib.request.Request(f"http://{address}/v1/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request))["choices"][0]["token_ids"])
PY
  first=${first:-$case}
  cmp "$out/$first.ids" "$out/$case.ids" && echo "answer to $((prompt / 3)) tokens: that of $first, $(head -c 60 "$out/$case.ids") ..."
  scrape "$cache" '^winnow_lane_seats_total'
  scrape "$inference" '^winnow_(lane|decode)_steps_total'
  grep -hE "from GPU to GPU|by frames|pinned|pushes" "$out/$case.log" | tail -3 || true
  kill $up
  wait $up || true
done
