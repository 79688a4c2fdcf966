#!/bin/sh
# Bring up a Slurm cluster of two nodes on this machine, below one folder, or take it down. Needs
# root, and Debian's packages slurm-wlm and munge, which `up` installs.
#
#   scripts/slurm_here.sh up FOLDER      then: export SLURM_CONF=FOLDER/slurm.conf
#   scripts/slurm_here.sh down FOLDER
#
# All nodes and this machine share FOLDER/shared. FOLDER/head is empty on the nodes, and each has a
# FOLDER/home of its own. A node is a PID namespace: nothing in it outlives it. Exit status 77: this
# machine can have no cluster.
set -eu

die() { # REASON [STATUS]
    echo "slurm_here.sh: $1" >&2
    exit "${2:-1}"
}

[ $# -eq 2 ] || die "usage: scripts/slurm_here.sh up|down FOLDER"
[ "$(id -u)" -eq 0 ] || die "only root can bring up a Slurm cluster" 77
mkdir -p "$2"
folder=$(cd "$2" && pwd)
export SLURM_CONF="$folder/slurm.conf"

install_packages() {
    command -v slurmctld slurmd munged >/dev/null && return
    command -v apt-get >/dev/null || die "there is no apt-get to install slurm-wlm and munge" 77
    export DEBIAN_FRONTEND=noninteractive
    packages="--no-install-recommends slurm-wlm munge"
    { apt-get install -qy $packages || { apt-get update -q && apt-get install -qy $packages; }; } \
        >"$folder/apt.log" 2>&1 </dev/null ||
        die "apt-get cannot install slurm-wlm and munge: $(tail -n 1 "$folder/apt.log")" 77
}

write_configuration() {
    mkdir -p "$folder/munge" "$folder/state" "$folder/shared" "$folder/head" "$folder/home" \
        "$folder/node1" "$folder/node2"
    chmod 755 "$folder/munge"
    head -c 128 /dev/urandom >"$folder/munge/key"
    chmod 600 "$folder/munge/key"
    cat >"$SLURM_CONF" <<END
ClusterName=here
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
MpiDefault=none
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmdSpoolDir=$folder/%n.spool
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
SlurmdTimeout=10
NodeName=node1 NodeHostname=node1 NodeAddr=127.0.0.1 Port=16821 CPUs=2
NodeName=node2 NodeHostname=node2 NodeAddr=127.0.0.1 Port=16822 CPUs=2
PartitionName=all Nodes=node[1-2] Default=YES State=UP
END
}

start() { # NAME COMMAND...: a daemon, which `down` ends
    name=$1
    shift
    setsid "$@" >"$folder/$name.log" 2>&1 </dev/null &
    echo $! >>"$folder/daemons"
}

start_node() { # NAME
    start "$1" unshare --mount --uts --pid --fork --kill-child --mount-proc sh -c '
        hostname "$1"
        mount -t tmpfs none "$2/head"
        mount --bind "$2/$1" "$2/home"
        slurmd -D -N "$1"
        exit' sh "$1" "$folder"
}

await() { # COMMAND...
    for _ in $(seq 150); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    die "$* does not succeed: see $folder/*.log"
}

up() {
    install_packages
    down
    write_configuration
    start munged munged --foreground --force --key-file="$folder/munge/key" \
        --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
        --seed-file="$folder/munge/seed" --log-file="$folder/munge/log"
    await munge --no-input --socket="$folder/munge/socket"
    start slurmctld slurmctld -D
    start_node node1
    start_node node2
    await sh -c '[ "$(sinfo --noheader --format=%D --states=idle)" = 2 ]'
}

down() {
    [ -e "$folder/daemons" ] || return 0
    for pid in $(cat "$folder/daemons"); do
        # Of a node this is unshare, which takes the whole namespace with it.
        kill -KILL "$pid" 2>/dev/null || true
        await sh -c "! grep '^State:.[^Z]' /proc/$pid/status"
    done
    rm "$folder/daemons"
}

case $1 in
up) up ;;
down) down ;;
*) die "usage: scripts/slurm_here.sh up|down FOLDER" ;;
esac
