#!/usr/bin/env bash
# Checks a model with spin, all of its states: check.sh MODEL [FLAGS...]
#
# The model as it is, and with each of FLAGS (several in one argument go together), must hold; with each flag that its
# comment lists under "must be found wrong" it must not.
set -euo pipefail
model=$(realpath "$1")
shift
command -v spin >/dev/null || { echo "spin is not there (Debian package spin): the model is not checked"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cp "$model" model.pml

# What the verifier says of the model with these flags: "errors: N", and whether it has seen everything.
verify() {
  # shellcheck disable=SC2086
  spin -a $1 model.pml >spin.log 2>&1 || { cat spin.log; exit 1; }
  ${CC:-gcc} -O2 -w -DNFAIR=3 -o pan pan.c
  ./pan -a -f -m400000 >pan.log 2>&1  # acceptance cycles under weak fairness: safety and progress in one search
}

failed=0
for flags in "" "$@"; do
  verify "$flags"
  if grep -q 'errors: 0' pan.log && ! grep -qE 'Search not completed|max search depth too small' pan.log; then
    echo "holds: $(basename "$model") $flags: $(grep -o '[0-9]* states, stored' pan.log)"
  else
    echo "DOES NOT HOLD: $(basename "$model") $flags"
    cat pan.log
    # shellcheck disable=SC2086
    spin -t -p -g $flags model.pml | tail -n 100
    failed=1
  fi
done
wrong=$(sed -n '/must be found wrong:$/,/^ \*\(\/\|$\)/s/^ \*   \(-D[A-Z_]*\) .*/\1/p' model.pml)
[[ -n $wrong ]] || { echo "$model says of no flag that it must be found wrong"; exit 1; }
for flag in $wrong; do
  verify "$flag"
  if grep -q 'errors: 1' pan.log; then
    echo "found wrong, as it must be: $flag: $(grep -m1 -o 'assertion violated.*\|acceptance cycle' pan.log)"
  else
    echo "NOT FOUND WRONG: $flag"
    cat pan.log
    failed=1
  fi
done
exit $failed
