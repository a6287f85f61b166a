#!/usr/bin/env bash
# Runs the page's tests in headless Chromium: run.sh WINNOW MODEL WORK_FOLDER
# Screenshots go to WORK_FOLDER/images, or to $WINNOW_PAGE_IMAGES (docs/images has those of the documents).
# Exits with 77, which ctest shows as skipped, where node, Chromium or the packages are not to be had.
set -euo pipefail
winnow=$1 model=$2 work=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v npm >/dev/null && command -v node >/dev/null || { echo "no node, no npm: skipped"; exit 77; }
chromium=$(command -v chromium || command -v chromium-browser || true)
[[ -n $chromium ]] || { echo "no Chromium: skipped"; exit 77; }

mkdir -p "$work"
cp "$here"/package.json "$here"/package-lock.json "$here"/*.mjs "$work"
cd "$work"
if ! cmp -s package-lock.json node_modules/.installed; then
  timeout 120 npm ci --no-audit --no-fund --loglevel=error || { echo "npm cannot install the packages: skipped"; exit 77; }
  cp package-lock.json node_modules/.installed
fi
WINNOW_BINARY=$winnow WINNOW_MODEL=$model CHROMIUM=$chromium node --test ./*.test.mjs
