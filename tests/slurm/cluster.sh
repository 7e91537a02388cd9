#!/bin/bash
# A real Slurm on one machine, for tests/python/nightly/test_slurm.py and for trying things by hand. Needs root,
# Linux namespaces, and Debian's packages slurm-wlm slurmdbd munge mariadb-server.
#
#   cluster.sh up [N]            starts the host ctl (slurmctld, slurmdbd) and node1..nodeN (a slurmd each)
#   cluster.sh down              ends everything that it started
#   cluster.sh on HOST CMD...    runs CMD as root on HOST       cluster.sh as HOST CMD...   as the user alice
#   cluster.sh unplug|plug HOST  takes the link of a host down  cluster.sh crash|boot HOST  ends all its processes at once
#
# SHARED: the directory that is the file system which all hosts share; $SHARED/cluster has what the cluster writes.
# PYTHON_PATH: directories before /usr/bin in alice's PATH. PROCTRACK: proctrack/cgroup (the default, as sites have
# it: a step's signals reach the launcher only), or proctrack/linuxproc (they reach the workers, too).
#
# Every host has network, UTS, PID, IPC and mount namespaces, and a private /tmp, /run and /dev/shm.
set -euo pipefail
SHARED=$(readlink -f "${SHARED:?the directory that all hosts share}")
STATE=$SHARED/cluster
ETC=$STATE/etc
HERE=$(dirname "$(readlink -f "$0")")
USER_ID=4242
WAIT_S=60

address() { case $1 in ctl) echo 10.99.0.100 ;; node*) echo "10.99.0.${1#node}" ;; esac; }
init_pid() { cat "$STATE/$1.pid"; }
enter() {
  local host=$1
  shift
  nsenter -t "$(init_pid "$host")" -n -u -m -p -i -- "$@"
}

wait_for() { # what, command...
  local what=$1 end=$((SECONDS + WAIT_S))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "cluster.sh: no $what within $WAIT_S s: see $STATE" >&2 && return 1; }
    sleep 0.1
  done
}

has_own_network() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
first_child() { grep -q . "/proc/$1/task/$1/children"; }

boot() { # HOST
  local host=$1 port=port-$1 holder pid
  mkdir -p "$STATE/$host"
  HOST=$host SHARED=$SHARED STATE=$STATE ETC=$ETC setsid unshare --net --uts --mount --ipc --pid --fork --kill-child \
    --mount-proc bash "$HERE/host.sh" </dev/null >"$STATE/$host/console" 2>&1 &
  holder=$!
  wait_for "process of $host" first_child "$holder"
  pid=$(tr -d ' ' <"/proc/$holder/task/$holder/children")
  wait_for "network of $host" has_own_network "$pid"
  echo "$pid" >"$STATE/$host.pid"
  if [ "$host" = ctl ]; then
    enter ctl ip link add switch type bridge
    enter ctl ip link set switch up
    enter ctl ip address add "$(address ctl)/24" dev switch
  else
    enter ctl ip link delete "$port" 2>/dev/null || true
    nsenter -t "$(init_pid ctl)" -n ip link add "$port" type veth peer name eth0 netns "$pid"
    enter ctl ip link set "$port" master switch up
    enter "$host" ip address add "$(address "$host")/24" dev eth0
    enter "$host" ip link set eth0 up
  fi
  enter "$host" ip link set lo up
  touch "$STATE/$host/network-up" # host.sh waits for it
}

crash() { # HOST: as a loss of power; the kernel ends everything in the PID namespace, connections just vanish
  enter ctl ip link set "port-$1" down
  kill -KILL "$(init_pid "$1")"
  rm -f "$STATE/$1/network-up"
}

up() { # NODES
  local nodes=${1:-4} host hosts
  hosts="ctl $(seq -s ' ' -f node%.0f "$nodes")"
  mkdir -p "$ETC" "$STATE/munge" "$STATE/devices" "$SHARED/alice"
  chmod 755 "$SHARED" "$STATE" "$ETC"
  chown $USER_ID:$USER_ID "$SHARED/alice"
  touch "$STATE/devices/gpu0" "$STATE/devices/gpu1"
  sed "s|@NODES@|node[1-$nodes]|; s|@STATE@|$STATE|g; s|@PROCTRACK@|${PROCTRACK:-proctrack/cgroup}|" \
    "$HERE/slurm.conf" >"$ETC/slurm.conf"
  printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainCores=no\n' >"$ETC/cgroup.conf"
  echo "NodeName=node[1-$nodes] Name=gpu File=$STATE/devices/gpu[0-1]" >"$ETC/gres.conf"
  sed "s|@STATE@|$STATE|g" "$HERE/slurmdbd.conf" >"$ETC/slurmdbd.conf"
  chmod 600 "$ETC/slurmdbd.conf"
  { echo 127.0.0.1 localhost && for host in $hosts; do echo "$(address "$host") $host"; done; } >"$ETC/hosts"
  { cat /etc/passwd && echo "alice:x:$USER_ID:$USER_ID::$SHARED/alice:/bin/bash"; } >"$ETC/passwd"
  { cat /etc/group && echo "alice:x:$USER_ID:"; } >"$ETC/group"
  for host in $hosts; do boot "$host"; done
  wait_for "idle nodes" all_idle "$nodes"
}

all_idle() { [ "$(enter ctl sinfo -h -N -p main -t idle | wc -l)" = "$1" ]; }

down() {
  local file
  for file in "$STATE"/*.pid; do
    [ -e "$file" ] || continue
    kill -KILL "$(cat "$file")" 2>/dev/null || true
    rm -f "$file"
  done
  rm -f "$STATE"/*/network-up
}

command=${1:-help}
shift || true
case $command in
  up) up "$@" ;;
  down) down ;;
  boot | crash) "$command" "$1" ;;
  unplug) enter ctl ip link set "port-$1" down ;;
  plug) enter ctl ip link set "port-$1" up ;;
  on) enter "$@" ;;
  as)
    host=$1
    shift
    enter "$host" setpriv --reuid $USER_ID --regid $USER_ID --clear-groups env -i HOME="$SHARED/alice" USER=alice \
      LANG=C.UTF-8 PATH="${PYTHON_PATH:+$PYTHON_PATH:}/usr/bin:/bin" bash -c 'cd; exec "$@"' - "$@"
    ;;
  *) sed -n '2,15p' "$0" ;;
esac
