#!/usr/bin/env bash
# Checks a wheel: its size, that its programs are stripped, the systems that it runs on, and a first job in a
# virtual environment that has nothing else, with a PATH that has no compiler.
#
#   bash tools/check_wheel.sh dist/elastic_launch-*.whl
#
# Needs auditwheel, readelf and the Python that the wheel is for, as `python`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
limit=3000000 # bytes
for wheel in "$@"; do
  echo "== $wheel"
  size=$(stat -c %s "$wheel")
  echo "$size bytes"
  [ "$size" -le $limit ] || { echo "larger than $limit bytes" >&2 && exit 1; }
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  python -m zipfile -e "$wheel" "$folder/content"
  find "$folder/content" -type f \( -name '*.so' -o -path '*/bin/*' \) | while read -r file; do
    if readelf -S --wide "$file" | grep '\.symtab\|\.debug_info' >/dev/null; then
      echo "not stripped: $file" >&2 && exit 1
    fi
  done
  auditwheel show "$wheel"
  python -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --no-index "$wheel"
  mkdir "$folder/bin" # what the job needs, and no compiler
  for tool in bash sort tee tail head diff grep mktemp rm printf cat; do
    ln -s "$(type -P "$tool")" "$folder/bin/"
  done
  env -i PATH="$folder/venv/bin:$folder/bin" bash "$root/tools/first_job.sh"
  rm -rf "$folder"
done
