#!/usr/bin/env bash
# Compares the contract with that of the last commit on main, by `buf breaking`; needs no network.
#
#     proto/tools/breaking.sh [path of buf]
#
# On a branch the base is where it left main; on main it is the commit before. A clone may be too shallow to have either:
# then this says so, and nothing is compared.
set -euo pipefail
buf=$(realpath --no-symlinks "${1:-.venv/bin/buf}")
cd "$(dirname "$0")/../.."

base=
for main in origin/main main; do
  git rev-parse --quiet --verify "$main^{commit}" >/dev/null 2>&1 || continue
  # Without a common ancestor in a shallow clone, main as it stands is the next best.
  base=$(git merge-base HEAD "$main" 2>/dev/null || git rev-parse "$main")
  [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse --quiet --verify 'HEAD~1' 2>/dev/null || true)
  [ -z "$base" ] || break
done
if [ -z "$base" ]; then
  echo 'buf breaking: this clone has no commit on main to compare the contract with; not compared' >&2
  exit 0
fi

before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
git archive "$base" proto | tar -x -C "$before"
"$buf" breaking proto --against "$before/proto" \
  || { echo "buf breaking: not compatible with the contract of ${base:0:12}" >&2; exit 1; }
