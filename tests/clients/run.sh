#!/usr/bin/env bash
# Runs the tests of public client packages against the echo server: run.sh ECHO_SERVER WORK_FOLDER
# Exits with 77, which ctest shows as skipped, where node or the packages are not to be had.
set -euo pipefail
echo_server=$1 work=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v npm >/dev/null && command -v node >/dev/null || { echo "no node, no npm: skipped"; exit 77; }

mkdir -p "$work"
cp "$here"/package.json "$here"/package-lock.json "$here"/*.mjs "$work"
cd "$work"
if ! cmp -s package-lock.json node_modules/.installed; then
  timeout 120 npm ci --no-audit --no-fund --loglevel=error || { echo "npm cannot install the packages: skipped"; exit 77; }
  cp package-lock.json node_modules/.installed
fi

coproc server { exec "$echo_server" 0 1; }
trap 'kill "$server_PID" 2>/dev/null || true' EXIT
read -r -t 10 line <&"${server[0]}" || { echo "the echo server did not start"; exit 1; }
WINNOW_BASE_URL="http://127.0.0.1:${line##* }/v1" node --test ./*.test.mjs
