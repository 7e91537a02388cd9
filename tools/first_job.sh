#!/usr/bin/env bash
# What an installed package must do without torch and without a compiler: start a job, restart it, report a
# failure, print the manual. `elastic-launch` and `python` are the first in PATH.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

elastic-launch --version
cat >train.py <<'PYTHON'
import os
import sys

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise RuntimeError("the first try fails")
sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\n")
PYTHON
elastic-launch --standalone --nproc-per-node=2 --max-restarts=1 train.py | sort | tee output
printf 'rank 0 of 2\nrank 1 of 2\n' >expected
tail -n 2 output | diff - expected  # rank 0 may have run in the first round, too

code=0
elastic-launch --standalone --nproc-per-node=2 train.py 2>report || code=$?
[ "$code" = 1 ]
grep -q 'RuntimeError: the first try fails' report

python -c "from elastic import StoreClient, StoreServer
with StoreServer() as server:
    StoreClient('127.0.0.1', server.port, timeout=5.0).set('key', 'value')"
elastic-launch help start >manual
grep -q '^Start$' manual
echo "first job: passed"
