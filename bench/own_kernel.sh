#!/usr/bin/env bash
# Runs a command in a Linux kernel of its own (User Mode Linux), which has limits of its own: for
# scenes that need more descriptors than this machine allows even to root.
#
#     bash bench/own_kernel.sh COMMAND [ARGUMENT...]
#     bash bench/own_kernel.sh python bench/run.py --no-build --host-network store-crowd --repeats 1
#
# The file system is this machine's, the working directory and PATH too; /dev/shm is empty. That
# kernel has one core, and a system call takes about 20 us in it instead of 0.1: times are upper
# limits. Needs user-mode-linux (Debian's package), a C compiler, and MEMORY (default: 12G) in
# /dev/shm. Ends with the code of the command.

set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
command -v linux.uml > /dev/null || { echo "own_kernel.sh: user-mode-linux is not installed" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Where the processor's registers are larger than that kernel knows (AVX-512, AMX), it may not write
# only a part of them: this writes the whole, with the rest as it was.
cat > "$folder/ptrace.c" <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kAllRegisters = 0x202 };  // NT_X86_XSTATE

long ptrace(enum __ptrace_request request, ...) {
  va_list more;
  va_start(more, request);
  const long pid = va_arg(more, long);
  void* address = va_arg(more, void*);
  void* data = va_arg(more, void*);
  va_end(more);
  if (request == PTRACE_SETREGSET && (long)address == kAllRegisters) {
    static char registers[1 << 16];
    const struct iovec* part = data;
    struct iovec whole = {registers, sizeof registers};
    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &whole) == 0 &&
        whole.iov_len > part->iov_len) {
      memcpy(registers, part->iov_base, part->iov_len);
      return syscall(SYS_ptrace, request, pid, address, &whole);
    }
  }
  if (request <= PTRACE_PEEKUSER && request >= PTRACE_PEEKTEXT) {  // the result is the word read
    long word = 0;
    const long failed = syscall(SYS_ptrace, request, pid, address, &word);
    if (failed == 0) errno = 0;
    return failed == 0 ? word : failed;
  }
  return syscall(SYS_ptrace, request, pid, address, data);
}
C
"${CC:-cc}" -O2 -shared -fPIC -o "$folder/ptrace.so" "$folder/ptrace.c"

# The first process of that kernel. hostfs passes this machine's files through.
quoted=$(printf '%q ' "$@")
cat > "$folder/init" <<INIT
#!/bin/bash
export HOME=/root PATH=$(printf %q "$PATH")
mount -t proc proc /proc && mount -t sysfs sys /sys
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
ip link set lo up
# As many connections may wait to be accepted as the clients of a scene open at once.
echo 65536 > /proc/sys/net/core/somaxconn
echo 65536 > /proc/sys/net/ipv4/tcp_max_syn_backlog
ulimit -n 1000000
cd $(printf %q "$PWD") && TMPDIR=/dev/shm $quoted
echo \$? > $folder/code
sync
echo o > /proc/sysrq-trigger
sleep 60
INIT
chmod +x "$folder/init"

LD_PRELOAD="$folder/ptrace.so" linux.uml "mem=${MEMORY:-12G}" rootfstype=hostfs rootflags=/ rw \
  quiet loglevel=0 "init=$folder/init" con=null con0=fd:0,fd:1 < /dev/null || true
exit "$(cat "$folder/code" 2> /dev/null || echo 1)"
