#!/bin/bash
# The first process of a host of cluster.sh: private mounts, then the daemons, none of which it restarts.
hostname "$HOST"
mount --make-rprivate /
for file in hosts passwd group; do mount --bind "$ETC/$file" "/etc/$file"; done
mount --bind "$ETC" /etc/slurm
# The shared file system keeps its path, also below the host's own /tmp.
mkdir -p /mnt && mount -t tmpfs tmpfs /mnt && mkdir -p /mnt/shared && mount --bind "$SHARED" /mnt/shared
mount -t tmpfs tmpfs /tmp && chmod 1777 /tmp && mkdir -p "$SHARED" && mount --bind /mnt/shared "$SHARED"
# A Python below /root (pyenv), which alice could not reach.
if [ -d /root/.pyenv ]; then
  mkdir /mnt/pyenv && mount --bind /root/.pyenv /mnt/pyenv && mount -t tmpfs -o mode=755 tmpfs /root
  mkdir /root/.pyenv && mount --bind /mnt/pyenv /root/.pyenv
fi
mount -t tmpfs tmpfs /run && mkdir -p /run/munge && chown munge:munge /run/munge
mount -t tmpfs tmpfs /dev/shm && chmod 1777 /dev/shm
until [ -e "$STATE/$HOST/network-up" ]; do sleep 0.05; done
setpriv --reuid munge --regid munge --clear-groups munged --force --foreground >"$STATE/$HOST/munged.log" 2>&1 &
until [ -S /run/munge/munge.socket.2 ]; do sleep 0.1; done
mkdir -p "$STATE/$HOST/spool"
if [ "$HOST" = ctl ]; then
  socket=/run/mysqld/mysqld.sock
  mkdir -p "$STATE/db" /run/mysqld && chown mysql "$STATE/db" /run/mysqld
  [ -d "$STATE/db/mysql" ] || mariadb-install-db --user=mysql --datadir="$STATE/db" --skip-test-db >/dev/null
  mariadbd --no-defaults --user=mysql --datadir="$STATE/db" --socket=$socket --bind-address=127.0.0.1 \
    --innodb-buffer-pool-size=64M >"$STATE/$HOST/mariadb.log" 2>&1 &
  until mariadb --no-defaults -S $socket -e 'select 1' >/dev/null 2>&1; do sleep 0.3; done
  mariadb --no-defaults -S $socket -e "create user if not exists slurm@localhost identified by 'slurm';
    grant all on slurm.* to slurm@localhost"
  slurmdbd -D >"$STATE/$HOST/slurmdbd.out" 2>&1 &
  until sacctmgr -n show cluster >/dev/null 2>&1; do sleep 0.3; done
  sacctmgr -i add cluster h >/dev/null 2>&1
  sacctmgr -i add account lab >/dev/null 2>&1
  sacctmgr -i add user alice account=lab adminlevel=administrator >/dev/null 2>&1
  slurmctld -D >"$STATE/$HOST/slurmctld.out" 2>&1 &
else
  slurmd -D >"$STATE/$HOST/slurmd.out" 2>&1 &
fi
while :; do wait; sleep 1 & wait $!; done # also reaps orphans
