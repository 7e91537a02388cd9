#!/bin/sh
# One command from a fresh machine to a trained model:
#
#   examples/demo.sh [options of train_digits.py]
#   examples/demo.sh --kill-a-worker     kills one worker during training and shows the recovery
#   examples/demo.sh --watch-it-recover [SCENE ...]
#                                        the same over several nodes: workers, agents, nodes, hosts
#   examples/demo.sh --watch-it-grow-and-shrink
#                                        nodes join, are lost and leave; the other processes go on
#
# Creates a virtual environment (.venv-demo, or $ELASTIC_DEMO_VENV), installs this package and what
# the training needs into it, and trains on handwritten digits with two workers. It uses the PyTorch
# of python3 if there is one, else it installs the build for CPUs. Later runs reuse the installation.
# Needs python3 >= 3.10 with venv, and a C++ compiler, unless ELASTIC_PACKAGE is a wheel.
#
#   ELASTIC_PACKAGE     what is installed as this package: a wheel; default: these sources
#   ELASTIC_TORCH       pip's requirement for PyTorch, as torch==2.13.0; default: see above
#   ELASTIC_DEMO_VENV   path of the environment; default: .venv-demo in the source directory
#   ELASTIC_DEMO_FRESH  1: install this package again, even if its sources are unchanged
set -eu
# Python keeps what it compiled: compiling torch at each start of a process would take 5 s.
unset PYTHONDONTWRITEBYTECODE

root=$(cd "$(dirname "$0")/.." && pwd)
venv=${ELASTIC_DEMO_VENV:-$root/.venv-demo}
package=${ELASTIC_PACKAGE:-$root}
torch_for_cpus="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu --retries 1"

case ${1:-} in
  -h | --help)
    sed -n '3,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
    exit
    ;;
  --kill-a-worker) what="trains on handwritten digits with two workers and kills one of them" ;;
  --watch-it-recover) what="trains on several nodes of this machine and takes down one thing after the other" ;;
  --watch-it-grow-and-shrink) what="trains while nodes of this machine join, are lost and leave" ;;
  *) what="trains on handwritten digits with two workers" ;;
esac
echo "demo.sh: $what, in the environment $venv" >&2
if [ ! -f "$venv/.installed-elastic" ] || [ ! -f "$venv/.installed-torch" ]; then
  echo "demo.sh: the first run installs it, which takes minutes, most of them for PyTorch's download" >&2
fi

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  echo "demo.sh: python3 must be 3.10 or newer" >&2
  exit 1
fi
if [ "$package" = "$root" ] && ! { command -v c++ || command -v g++ || command -v clang++ || [ -n "${CXX:-}" ]; } >/dev/null; then
  echo "demo.sh: no C++ compiler; install one, for example by: apt-get install g++" >&2
  exit 1
fi
if [ ! -x "$venv/bin/pip" ]; then
  echo "demo.sh: creating the environment" >&2
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
  echo "demo.sh: installing ${*%% --*}" >&2
  # Python compiles what is imported; torch alone has thousands of other modules.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile "$@" || return
  echo "$wanted" >"$stamp"
}

# True if a source of the package is newer than its stamp: then it is installed again.
sources_changed() {
  [ -n "${ELASTIC_DEMO_FRESH:-}" ] || [ ! -f "$venv/.installed-elastic" ] ||
    [ -n "$(find "$root/csrc" "$root/python" "$root/CMakeLists.txt" "$root/pyproject.toml" \
      -type f ! -name '*.pyc' -newer "$venv/.installed-elastic" | head -n 1)" ]
}

# The directory of the packages of python3, if a recent PyTorch is one of them.
packages_with_torch() {
  python3 - 2>/dev/null <<'PYTHON'
import importlib.metadata as found
import os
import re

version = tuple(int(number) for number in re.findall(r"\d+", found.version("torch"))[:2])
assert version >= (2, 4)
print(os.path.dirname(os.path.dirname(found.distribution("torch").locate_file("torch/__init__.py"))))
PYTHON
}

# These sources are compiled while the rest is downloaded.
if sources_changed; then
  rm -f "$venv/.installed-elastic"
fi
compiling=
if [ "$package" = "$root" ] && [ ! -f "$venv/.installed-elastic" ]; then
  rm -rf "$venv/wheel"
  echo "demo.sh: compiling these sources, meanwhile:" >&2
  "$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps \
    --wheel-dir "$venv/wheel" "$root" &
  compiling=$!
  trap 'kill "$compiling" 2>/dev/null || true' EXIT
fi
if [ -n "${ELASTIC_TORCH:-}" ]; then
  install_once torch "$ELASTIC_TORCH" numpy scikit-learn
elif [ ! -f "$venv/.installed-torch" ]; then
  if packages=$(packages_with_torch); then
    echo "demo.sh: using the PyTorch in $packages" >&2
    for path in "$venv"/lib/python3.*/site-packages; do
      echo "$packages" >"$path/torch_of_the_host.pth"
    done
  else
    echo "demo.sh: no PyTorch in the packages of $(command -v python3): downloading the build for CPUs" >&2
    # shellcheck disable=SC2086  # several words
    if ! install_once torch-for-cpus $torch_for_cpus; then
      echo "demo.sh: download.pytorch.org does not answer; PyPI's larger build is installed" >&2
      install_once torch-of-pypi torch==2.13.0
    fi
  fi
  install_once torch numpy scikit-learn
fi
if [ -n "$compiling" ]; then
  echo "demo.sh: waiting for the compiler" >&2
  wait "$compiling"
  trap - EXIT
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall \
    "$venv"/wheel/*.whl
  echo "elastic $package" >"$venv/.installed-elastic"
fi
install_once elastic "$package"
echo "demo.sh: starting" >&2

if [ "${1:-}" = --kill-a-worker ]; then
  exec "$venv/bin/python" "$root/examples/watch_recovery.py"
fi
if [ "${1:-}" = --watch-it-recover ]; then
  shift
  exec "$venv/bin/python" "$root/examples/watch_it_recover.py" "$@"
fi
if [ "${1:-}" = --watch-it-grow-and-shrink ]; then
  shift
  exec "$venv/bin/python" "$root/examples/watch_it_grow_and_shrink.py" "$@"
fi
exec "$venv/bin/elastic-launch" --standalone --nproc-per-node=2 --max-restarts=3 \
  "$root/examples/train_digits.py" "$@"
