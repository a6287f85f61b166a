# shellcheck shell=bash
# A cluster on free ports for the scripts beside this one, which source it: files go to $out, $winnow is the program.

out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
up='' http='' grpc='' metrics=''
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

# start_up NAME UP_FLAG...   returns when it is ready: $http, $grpc and $metrics, the router's first, say where
start_up() {
  "$winnow" up --http=127.0.0.1:0 --grpc=127.0.0.1:0 --metrics=127.0.0.1:0 "${@:2}" >"$out/$1.out" 2>"$out/$1.log" &
  up=$!
  for _ in $(seq 1200); do
    grep -q ^ready "$out/$1.out" && break
    kill -0 $up 2>/dev/null || { tail -20 "$out/$1.log"; exit 1; }
    sleep 0.05
  done
  # shellcheck disable=SC2034  # of the scripts
  read -r http grpc metrics < <(sed -n 's/^ready//; s/ [a-z]*=/ /gp' "$out/$1.out")
}

stop_up() {
  kill "$up"
  wait "$up" || true
  up=''
}

# answer_ids TOKENS [SELECTION]   those of a greedy answer of 48 tokens to a prompt of its own
answer_ids() {
  python3 - "$http" "$1" "${2:-}" <<'PY'
import json, sys, urllib.request
address, tokens = sys.argv[1], int(sys.argv[2])
body = {"prompt": [(i * i * 7 + i * 13) % 3000 + 100 for i in range(tokens)], "max_tokens": 48, "temperature": 0,
        "return_token_ids": True, "ignore_eos": True}
if sys.argv[3]:
    body["winnow"] = {"selection": sys.argv[3]}
request = urllib.request.Request(f"http://{address}/v1/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request))["choices"][0]["token_ids"])
PY
}
