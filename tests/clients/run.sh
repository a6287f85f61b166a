#!/usr/bin/env bash
# Runs the tests of public client packages:
#   run.sh echo WORK_FOLDER ECHO_SERVER               against a server that answers every prompt with its own text
#   run.sh up WORK_FOLDER WINNOW MODEL TEMPLATE       against `winnow up` (up/main.mjs)
# Exits with 77, which ctest shows as skipped, where node or the packages are not to be had.
set -euo pipefail
mode=$1 work=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v npm >/dev/null && command -v node >/dev/null || { echo "no node, no npm: skipped"; exit 77; }

mkdir -p "$work"
cp "$here"/package.json "$here"/package-lock.json "$work"
if [[ $mode == up ]]; then
  cp -r "$here"/up/. "$here"/../page/cluster.mjs "$work"
else
  cp "$here"/*.mjs "$work"
fi
cd "$work"
if ! cmp -s package-lock.json node_modules/.installed; then
  timeout 120 npm ci --no-audit --no-fund --loglevel=error || { echo "npm cannot install the packages: skipped"; exit 77; }
  cp package-lock.json node_modules/.installed
fi
[[ $mode == echo ]] || exec node main.mjs "$@"

coproc server { exec "$1" 0 1; }
trap 'kill "$server_PID" 2>/dev/null || true' EXIT
read -r -t 10 line <&"${server[0]}" || { echo "the echo server did not start"; exit 1; }
WINNOW_BASE_URL="http://127.0.0.1:${line##* }/v1" node --test ./*.test.mjs
