#!/bin/sh
# One command from a fresh machine to a trained model:
#
#   examples/demo.sh [options of train_digits.py]
#   examples/demo.sh --kill-a-worker     kills one worker during training and shows the recovery
#   examples/demo.sh --watch-it-recover [SCENE ...]
#                                        the same over several nodes: workers, agents, nodes, hosts
#
# Creates a virtual environment (.venv-demo, or $ELASTIC_DEMO_VENV), installs PyTorch, scikit-learn
# and this package into it, and trains on handwritten digits with two workers. Later runs reuse the
# installation. Needs python3 >= 3.10 with venv, and a C++ compiler.
#
#   ELASTIC_TORCH       pip's requirement for PyTorch; default: torch==2.13.0
#   ELASTIC_DEMO_VENV   path of the environment; default: .venv-demo in the source directory
#   ELASTIC_DEMO_FRESH  1: install this package again, even if its sources are unchanged
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
venv=${ELASTIC_DEMO_VENV:-$root/.venv-demo}
torch=${ELASTIC_TORCH:-torch==2.13.0}

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  echo "demo.sh: python3 must be 3.10 or newer" >&2
  exit 1
fi
if ! { command -v c++ || command -v g++ || command -v clang++ || [ -n "${CXX:-}" ]; } >/dev/null; then
  echo "demo.sh: no C++ compiler; install one, for example by: apt-get install g++" >&2
  exit 1
fi
if [ ! -x "$venv/bin/pip" ]; then
  echo "demo.sh: creating $venv" >&2
  if ! python3 -m venv "$venv"; then
    echo "demo.sh: python3 has no venv; install it, for example by: apt-get install python3-venv" >&2
    exit 1
  fi
fi

# Installs a step's requirements once; $1 is the name of the step, the rest are pip's arguments.
install_once() {
  stamp=$venv/.installed-$1
  wanted="$*"
  shift
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return 0
  fi
  echo "demo.sh: installing $*" >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
  echo "$wanted" >"$stamp"
}

# True if a source of the package is newer than its stamp: then it is installed again.
sources_changed() {
  [ -n "${ELASTIC_DEMO_FRESH:-}" ] || [ ! -f "$venv/.installed-elastic" ] ||
    [ -n "$(find "$root/csrc" "$root/python" "$root/CMakeLists.txt" "$root/pyproject.toml" \
      -type f ! -name '*.pyc' -newer "$venv/.installed-elastic" | head -n 1)" ]
}

install_once torch "$torch" numpy scikit-learn
if sources_changed; then
  rm -f "$venv/.installed-elastic"
fi
install_once elastic "$root"

if [ "${1:-}" = --kill-a-worker ]; then
  exec "$venv/bin/python" "$root/examples/watch_recovery.py"
fi
if [ "${1:-}" = --watch-it-recover ]; then
  shift
  exec "$venv/bin/python" "$root/examples/watch_it_recover.py" "$@"
fi
exec "$venv/bin/elastic-launch" --standalone --nproc-per-node=2 --max-restarts=3 \
  "$root/examples/train_digits.py" "$@"
