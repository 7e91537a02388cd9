#!/usr/bin/env bash
# Sets everything up and runs every test: style rules, C++ (plain, ASan+UBSan, TSan, short fuzzing),
# and the installed Python package.
#
#   bash tests/run.sh            everything (half an hour to an hour on two cores)
#   bash tests/run.sh STEP …     only these: tidy cpp asan tsan fuzz python
#
# Needs Linux, python3 >= 3.10 with venv, and a C++20 compiler. As root on Debian or Ubuntu it installs
# missing packages; elsewhere it lists them. All its output is below build/.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(tidy cpp asan tsan fuzz python)
jobs=$(nproc)
venv=$PWD/build/test-venv
mkdir -p build

log_step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

install_system_packages() {
  local missing=()
  command -v g++ >/dev/null || missing+=(g++)
  command -v ip >/dev/null || missing+=(iproute2)
  command -v redis-server >/dev/null || missing+=(redis-server)
  command -v etcd >/dev/null || missing+=(etcd-server)
  [ -e /usr/include/gtest/gtest.h ] || missing+=(libgtest-dev)
  [ -e /usr/include/gmock/gmock.h ] || missing+=(libgmock-dev)
  [ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
  command -v openssl >/dev/null || missing+=(openssl)
  command -v clang++ >/dev/null || missing+=(clang)
  command -v ccache >/dev/null || missing+=(ccache)
  install_packages "${missing[@]}"
  # libFuzzer is a separate package, named after the compiler's version.
  compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null ||
    install_packages "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
}

# A browser for the test of the dashboard, which is skipped without one.
install_browser() {
  command -v chromium >/dev/null || command -v google-chrome >/dev/null && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
  (install_packages chromium) || echo "tests/run.sh: chromium is not available" >&2
}

install_packages() {
  local missing=("$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tests/run.sh: please install these packages (Debian's names): ${missing[*]}" >&2
    exit 2
  fi
  log_step "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    >/dev/null
}

set_up_python() {
  log_step "setting up Python"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  # Install torch first: packages that depend on it would otherwise choose its version.
  "$venv/bin/pip" install -q "torch==${ELASTIC_TORCH_VERSION:-2.13.0}"
  "$venv/bin/pip" install -q cmake ninja pybind11 scikit-build-core numpy scikit-learn
  export PATH="$venv/bin:$PATH"
}

cpp() { # preset, build target, then arguments for ctest
  local preset=$1 target=$2
  shift 2
  log_step "C++ tests, preset $preset"
  cmake --preset "$preset" >"build/$preset.log" || { cat "build/$preset.log" && return 1; }
  cmake --build --preset "$preset" -j "$jobs" --target "$target"
  ctest --preset "$preset" -j "$jobs" "$@"
}

step_tidy() {
  # A fixed version of the formatter, because versions format differently.
  "$venv/bin/pip" install -q pytest ruff clang-format==14.0.6
  log_step "style rules"
  ruff check .
  ruff format --check .
  git ls-files '*.cc' '*.h' | xargs clang-format --dry-run -Werror
  python -m pytest -q tests/tidy.py
}

step_cpp() {
  cpp dev all
  cmake --build --preset dev --target all_verify_interface_header_sets
}

step_asan() { cpp asan-ubsan all; }

step_tsan() { cpp tsan thread_tests -L threads; }

step_fuzz() {
  log_step "fuzzing the decoders"
  cmake -G Ninja -S . -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DELASTIC_BUILD_FUZZERS=ON -DELASTIC_BUILD_TESTS=ON >build/fuzz.log
  fuzz request_decoder_fuzz tests/cpp/fuzz/corpus
  fuzz session_decoder_fuzz tests/cpp/fuzz/session_corpus
  fuzz voter_decoder_fuzz tests/cpp/fuzz/voter_corpus
}

fuzz() { # target, its corpus
  local found
  cmake --build build/fuzz -j "$jobs" --target "$1"
  found=$(mktemp -d build/corpus.XXXX)
  "$(find build/fuzz -name "$1" -type f)" -max_total_time=15 -verbosity=0 "$found" "$2"
  rm -rf "$found"
}

step_python() {
  install_browser
  # The package, the installed library, the benchmarks and the README's demo compile the same files.
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR=$PWD/build/ccache
  # Paths below the sources are hashed relative to the build directory, those of the system as they
  # are: so builds of a copy of the sources (test_install.py) share the cache, too.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  export CXX=${CXX:-g++} CMAKE_GENERATOR=Ninja  # the cache distinguishes also the compiler's name
  log_step "building and installing the package"
  "$venv/bin/pip" install -q --no-build-isolation ".[test,etcd]"
  log_step "Python tests"
  mypy
  python -m pytest tests/python
}

install_system_packages
set_up_python
for step in "${steps[@]}"; do
  case $step in
    tidy | cpp | asan | tsan | fuzz | python) "step_$step" ;;
    *) echo "tests/run.sh: unknown step $step (steps: tidy cpp asan tsan fuzz python)" >&2 && exit 2 ;;
  esac
done
log_step "all steps passed: ${steps[*]}"
