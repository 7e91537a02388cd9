#!/usr/bin/env bash
# Sets everything up and runs the tests. CONTRIBUTING.md says what each tier sees, and what it does not.
#
#   bash tests/run.sh               what CI runs: style, the installed package, C++ with sanitizers, fuzzing
#   bash tests/run.sh quick         an answer within minutes, while you work
#   bash tests/run.sh nightly       everything of the above, and what takes hours
#   bash tests/run.sh STEP …        only these: tidy quick cpp python old uv asan tsan fuzz
#   bash tests/run.sh stress TEST   a test 50 times, beside four busy loops: a pytest id, or a C++ Suite.Test
#
# Needs Linux, python3 >= 3.10 with venv, and a C++20 compiler. As root on Debian or Ubuntu it installs
# missing packages; elsewhere it lists them. All its output is below build/: JUnit files with the time of
# each test in build/junit/, the reports of tests that passed only when they were run again in build/flaky/.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=$(nproc)
venv=$PWD/build/test-venv
junit=$PWD/build/junit
tier=ci
sim_percent=20      # of the seeds that each simulation has by default
fuzz_seconds=8      # for each decoder
python_tests="not nightly"
python_options=()

# Every compilation goes through the cache. Paths below the sources are hashed relative to the build
# directory, so that builds of a copy of the sources (test_install.py) share it, too.
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache}
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
export CMAKE_GENERATOR=Ninja

has_step() { [[ " ${steps[*]-} " == *" $1 "* ]]; }
log_step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

install_system_packages() {
  local missing=()
  command -v g++ >/dev/null || missing+=(g++)
  command -v ip >/dev/null || missing+=(iproute2)
  command -v redis-server >/dev/null || missing+=(redis-server)
  command -v etcd >/dev/null || missing+=(etcd-server)
  [ -e /usr/include/gtest/gtest.h ] || missing+=(libgtest-dev)
  [ -e /usr/include/gmock/gmock.h ] || missing+=(libgmock-dev)
  [ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev) # for the test of its declarations
  command -v openssl >/dev/null || missing+=(openssl)
  command -v clang++ >/dev/null || missing+=(clang)
  command -v ccache >/dev/null || missing+=(ccache)
  if [ "$tier" = nightly ] && ! command -v slurmctld >/dev/null; then # a real Slurm: tests/slurm
    missing+=(slurm-wlm slurmdbd munge mariadb-server)
  fi
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

# Python compiles a module when it is first imported: most of torch's never are. Where the environment
# forbids to keep the result, as images of containers do, each of a thousand processes would compile
# torch again, for 5 s.
unset PYTHONDONTWRITEBYTECODE
pip_install() { pip install -q --no-compile "$@"; }

set_up_python() {
  log_step "setting up Python"
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  export PATH="$venv/bin:$PATH"
  # A fixed version of the formatter, because versions format differently.
  pip_install cmake ninja pybind11 scikit-build-core ruff clang-format==14.0.6
  if has_step asan; then build_ahead asan-ubsan all; fi
  if [ "$tier" = quick ]; then
    pip_install $(test_requirements)
  else
    # Install torch first: packages that depend on it would otherwise choose its version.
    pip_install "torch==${ELASTIC_TORCH_VERSION:-2.13.0}" numpy scikit-learn
    pip_install $(test_requirements) "etcd3gw>=2.1"
  fi
  export pybind11_DIR
  pybind11_DIR=$(python -m pybind11 --cmakedir)
}

# The package's extra "test", less what needs torch.
test_requirements() {
  python - "$tier" <<'PYTHON'
import sys
try:
    import tomllib
except ImportError:  # Python 3.10
    import pip._vendor.tomli as tomllib
with open("pyproject.toml", "rb") as file:
    names = tomllib.load(file)["project"]["optional-dependencies"]["test"]
print(*(name for name in names if sys.argv[1] != "quick" or not name.startswith("accelerate")))
PYTHON
}

configure() { # preset
  cmake --preset "$1" >"build/$1.log" || { cat "build/$1.log" && return 1; }
}

build() { # preset, targets
  stop_building
  configure "$1"
  ninja -C "build/$1" -j "$jobs" "${@:2}"
}

# Builds what a later step needs beside the tests of this one, which wait for most of their time: at
# the lowest priority, so that they do not notice. The later step builds what is then missing.
builder=
build_ahead() { # preset, targets
  log_step "beginning to build in the background, preset $1"
  configure "$1"
  nice -n 19 ninja -C "build/$1" -j "$jobs" "${@:2}" >"build/$1-ahead.log" 2>&1 &
  builder=$!
  trap 'kill $builder' EXIT # a step failed
}

# Does not wait: on a busy machine a compiler of the lowest priority may never end.
stop_building() {
  [ -n "$builder" ] || return 0
  trap - EXIT
  kill "$builder" 2>/dev/null || :
  wait "$builder" || :
  builder=
}

run_ctest() { # preset, then arguments for ctest
  local preset=$1
  shift
  mkdir -p "$junit"
  # Many of these tests wait for processes most of their time.
  ELASTIC_SIM_PERCENT=$sim_percent ctest --preset "$preset" -j "$((2 * jobs))" --no-tests=error \
    --output-junit "$junit/cpp-$preset.xml" "$@" >"build/$preset-tests.log" ||
    { cat "build/$preset-tests.log" && return 1; }
  tail -n 3 "build/$preset-tests.log"
}

run_pytest() { # name, then arguments for pytest
  local name=$1
  shift
  python -m pytest -q --junitxml="$junit/$name.xml" "$@"
}

step_tidy() {
  log_step "style rules"
  ruff check .
  ruff format --check .
  git ls-files '*.cc' '*.h' | xargs clang-format --dry-run -Werror
  python -m pytest -q tests/tidy.py
}

# One build without optimisation, with the Python extension in it.
step_quick() {
  log_step "building, preset quick"
  build quick core_tests os_tests sim_tests csrc/{bindings,guardian,coordinator}/all
  log_step "C++ tests of core, os and the simulations"
  sim_percent=5 run_ctest quick -L 'core_tests|os_tests|sim_tests'
  local package=$PWD/build/quick/package
  rm -rf "$package" && cp -r python "$package"
  cmake --install build/quick --component python --prefix "$package" >/dev/null
  log_step "Python types and tests"
  mypy
  PATH="$PWD/build/quick/csrc/coordinator:$PATH" PYTHONPATH=$package run_pytest quick \
    -n "$jobs" --dist worksteal -m "unit or smoke" tests/python/unit tests/python/process
}

step_cpp() {
  log_step "building, preset dev"
  build dev all all_verify_interface_header_sets
  log_step "C++ tests, preset dev"
  run_ctest dev
}

step_asan() {
  log_step "building with AddressSanitizer and UndefinedBehaviorSanitizer"
  build asan-ubsan all
  if has_step tsan; then build_ahead tsan "${tsan_tests[@]}"; fi
  log_step "C++ tests with AddressSanitizer and UndefinedBehaviorSanitizer"
  run_ctest asan-ubsan
}

tsan_tests=(os_tests host_tests)
step_tsan() {
  log_step "building with ThreadSanitizer"
  build tsan "${tsan_tests[@]}"
  log_step "C++ tests of os and host with ThreadSanitizer"
  # Not those whose subject is the time and the number of processes.
  run_ctest tsan -L 'os_tests|host_tests' -E '\.(Sweep|ProcessLimit|StuckWorker)'
}

# Each decoder has a target, which is named as its corpus is.
step_fuzz() {
  local names
  names=$(basename -a -s _corpus tests/cpp/fuzz/*_corpus)
  build asan-ubsan $(printf '%s_decoder_fuzz ' $names)
  log_step "fuzzing for $fuzz_seconds s each:" $names
  xargs -P "$jobs" -I NAME bash -c '
    found=$(mktemp -d build/corpus.XXXX)
    build/asan-ubsan/tests/cpp/fuzz/NAME_decoder_fuzz -max_total_time=$0 -verbosity=0 "$found" \
      tests/cpp/fuzz/NAME_corpus && rm -rf "$found"' "$fuzz_seconds" <<<"$names"
}

step_python() {
  install_browser
  log_step "building and installing the package"
  export CXX=${CXX:-g++}  # the cache distinguishes also the compiler's name
  pip_install --no-build-isolation .
  log_step "Python types"
  mypy
  log_step "Python tests"
  run_pytest python --flaky-dir=build/flaky "${python_options[@]}" \
    -n "$((2 * jobs))" --dist worksteal -m "($python_tests) and not alone" tests/python
  log_step "Python tests that need the machine for themselves"
  stop_building
  run_pytest python-alone --flaky-dir=build/flaky "${python_options[@]}" \
    -m "($python_tests) and alone" tests/python
}

# An environment of Python that sees the packages of the tests' own one.
make_venv() { # interpreter, folder
  "$1" -m venv --clear --without-pip "$2"
  local site
  site=$(echo "$2"/lib/python*/site-packages)
  python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/tests.pth"
}

# The programs of the tests run on an interpreter without os.memfd_create, os.pidfd_open and others,
# as those of conda and uv are. Needs the package installed.
step_old() {
  local folder=$PWD/build/old-python
  log_step "Python tests that start processes, on a Python that was built on an old system"
  make_venv python "$folder"
  echo "import os; exec(open('$PWD/tests/python/support/old_python/sitecustomize.py').read())" \
    >"$(echo "$folder"/lib/python*/site-packages)/old_python.pth"
  "$folder/bin/python" -c 'import elastic, os; assert not hasattr(os, "memfd_create")'
  (PATH="$folder/bin:$PATH" && run_pytest old -n "$((2 * jobs))" --dist worksteal \
    -m "process and not alone and not quarantine" tests/python/process)
}

# The same on an interpreter of uv, which has the version of the tests' own one.
step_uv() {
  local folder=$PWD/build/uv-python interpreter
  log_step "Python tests that start processes, on a Python of uv"
  pip_install uv
  local version
  version=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if ! uv python install -q --install-dir "$folder/installed" "$version" 2>"build/uv.log"; then
    log_step "SKIPPED: uv cannot download a Python $version here: $(tail -n 1 build/uv.log)"
    return 0
  fi
  interpreter=$(echo "$folder"/installed/cpython-*/bin/python3)
  make_venv "$interpreter" "$folder/venv"
  (PATH="$folder/venv/bin:$PATH" && run_pytest uv -n "$((2 * jobs))" --dist worksteal \
    -m "process and not alone and not quarantine" tests/python/process)
}

stress() { # a test
  local runs=50 test=$1 failed=0 loops=() command
  set_up_python
  if [[ $test == *.py* ]]; then
    python -c 'import elastic' || CXX=${CXX:-g++} pip_install --no-build-isolation .
    command=(python -m pytest -q -p no:cacheprovider "$test")
  else
    build quick core_tests os_tests host_tests sim_tests
    local program
    for program in build/quick/tests/cpp/*/*_tests; do
      "$program" --gtest_list_tests "--gtest_filter=$test" | grep -q . && break
    done
    command=("$program" --gtest_brief=1 "--gtest_filter=$test")
  fi
  for _ in 1 2 3 4; do
    timeout 3600 sh -c 'while :; do :; done' &
    loops+=($!)
  done
  trap 'kill "${loops[@]}"' EXIT
  for run in $(seq $runs); do
    "${command[@]}" >"build/stress-$run.log" 2>&1 || { failed=$((failed + 1)) && tail -n 40 "build/stress-$run.log"; }
  done
  log_step "$test: $((runs - failed)) of $runs runs passed"
  [ $failed = 0 ]
}

summary() {
  log_step "slowest tests of this run"
  python tests/slowest.py "$junit"
  if compgen -G 'build/flaky/*' >/dev/null; then
    printf 'FLAKY (passed only when run again, see build/flaky): %s\n' build/flaky/*
  fi
  log_step "all steps passed: ${steps[*]}"
}

steps=("$@")
case "${1-}" in
  "") steps=(tidy python asan tsan fuzz) ;;
  quick)
    tier=quick
    [ $# = 1 ] && steps=(tidy quick)
    ;;
  nightly)
    tier=nightly
    steps=(tidy quick cpp python old uv asan tsan fuzz)
    sim_percent=2000
    fuzz_seconds=600
    python_tests="nightly or not nightly"
    python_options=(--nightly)
    ;;
  stress)
    [ $# = 2 ] || { echo "tests/run.sh stress needs one test" >&2 && exit 2; }
    install_system_packages
    stress "$2"
    exit
    ;;
esac
for step in "${steps[@]}"; do
  case $step in
    tidy | quick | cpp | python | old | uv | asan | tsan | fuzz) ;;
    *) echo "tests/run.sh: unknown step $step (steps: tidy quick cpp python old uv asan tsan fuzz)" >&2 && exit 2 ;;
  esac
done

mkdir -p build
rm -rf "$junit" build/flaky
install_system_packages
set_up_python
for step in "${steps[@]}"; do "step_$step"; done
summary
