#!/bin/sh
# A Slurm of one node with two GPUs and eight shards each: cluster.sh FOLDER, as the first process of
# new namespaces (network, mount, IPC, PID). Its slurm.conf and the device files are in FOLDER. Prints
# "up" when the node is idle; all ends with its standard input.
set -eu
folder=$1
cd "$folder"

ip link set lo up
ip addr add 10.77.0.1/32 dev lo # getaddrinfo ignores loopback addresses
for place in /run /etc/slurm /etc/munge /var/cache; do
    mkdir -p "$place"
    mount -t tmpfs tmpfs "$place"
done
cp slurm.conf gres.conf plugstack.conf cgroup.conf /etc/slurm/
mkdir -p /run/munge state spool

dd if=/dev/urandom of=/etc/munge/munge.key bs=128 count=1 status=none
chmod 400 /etc/munge/munge.key
chown -R munge: /etc/munge /run/munge
setpriv --reuid=munge --regid=munge --clear-groups \
    munged --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/pid --seed-file=/run/munge/seed \
    --log-file=/run/munge/log
slurmctld 2>/dev/null
slurmd
tries=0
until [ "$(sinfo --noheader --format=%t 2>/dev/null)" = idle ]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { tail -n 20 slurmctld.log slurmd.log; exit 1; }
    sleep 0.1
done
echo up
cat >/dev/null
