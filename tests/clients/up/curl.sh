#!/usr/bin/env bash
# The requests of the README and of docs/api.md by curl: curl.sh URL
set -euo pipefail
url=$1
ask='{"model": "demo", "messages": [{"role": "user", "content": "The code of nerita is 271828. What is the code of nerita?"}], "temperature": 0'
fail() { echo "curl: $1: $2"; exit 1; }
expect() { [[ $2 == *"$3"* ]] || fail "$1" "$2"; }

expect "whole" "$(curl -sf "$url/v1/chat/completions" -d "$ask}")" 271828
stream=$(curl -sfN "$url/v1/chat/completions" -d "$ask, \"stream\": true}")
expect "stream" "$stream" 'data: [DONE]'
expect "responses" "$(curl -sf "$url/v1/responses" -d '{"input": "The code of nerita is 271828. What is the code of nerita?", "temperature": 0}')" '"status":"completed"'
expect "typo" "$(curl -s "$url/v1/chat/completions" -d "$ask, \"max_token\": 1}")" 'did you mean'
[[ $(curl -s -o /dev/null -w '%{http_code}' "$url/v1/chat/completions" -d "$ask, \"cache_salt\": \"x\"}") == 400 ]] || fail "refused field" "no 400"
expect "models" "$(curl -sf "$url/v1/models")" '"demo"'
expect "version" "$(curl -sf "$url/version")" '"version"'
curl -sf "$url/health" >/dev/null && curl -sf -X POST "$url/ping" >/dev/null || fail "health" "no 200"
