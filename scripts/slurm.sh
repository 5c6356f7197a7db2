#!/usr/bin/env bash
# A SLURM cluster of three nodes on this machine, for tests, with Debian's packages:
#
#     bash scripts/slurm.sh start DIR [--accounting] [--owner PID]
#     . DIR/environment                 # now sbatch, squeue and fdl --on slurm use it
#     bash scripts/slurm.sh stop DIR
#
# It needs root. All files are below DIR, and all daemons listen on 127.0.0.1 only. Each node has a
# name of its own. The cluster stops when its owner ends: the process that called the script, or
# the one that --owner names. `node DIR NAME` starts a node that has failed.
#
# Partitions: `main`; `cancel` and `requeue`, whose jobs are ended or queued again when a job of
# `urgent` needs their nodes; `short`, which allows one minute.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/venv.sh"

packages="munge slurmctld slurmd slurm-client"
nodes="node1 node2 node3"
machine=$(hostname)

# install PROGRAM PACKAGE…: the packages, if the program is missing.
install() {
    local program=$1
    shift
    command -v "$program" >/dev/null && return
    # The packages must not start daemons of their own.
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install --yes --no-install-recommends "$@" ||
        fail "could not install $*" "On Debian and Ubuntu: apt-get update. Then run this again."
}

free_port() {
    python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# daemon NAME HOST COMMAND…: start it on a machine called HOST, which knows the names of all nodes;
# keep its log and its process number.
daemon() {
    local name=$1 host=$2 open
    shift 2
    (
        # Locks and pipes of the caller are not for daemons, which would keep them open.
        for open in /proc/self/fd/*; do
            [ "${open##*/}" -le 2 ] || eval "exec ${open##*/}>&-"
        done 2>/dev/null
        # shellcheck disable=SC2016 # the inner shell expands them
        exec setsid unshare --mount --uts sh -c \
            'mount --bind "$SLURM_FOLDER/hosts.$0" /etc/hosts && hostname "$0" && exec "$@"' \
            "$host" "$@"
    ) </dev/null >>"$dir/$name.out" 2>&1 &
    echo $! >"$dir/pids/$name"
}

# until_ready WHAT LOG COMMAND…: repeat a command until it succeeds.
until_ready() {
    local what=$1 log=$2 limit=$((SECONDS + 60))
    shift 2
    until "$@" </dev/null >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$limit" ]; then
            tail -n 20 "$dir/$log" >&2
            stop
            fail "$what did not start; its log is $dir/$log"
        fi
        sleep 0.1
    done
}

alive() {
    [ -e "/proc/$1" ] && [ "$(sed 's/.*) //' "/proc/$1/stat" | cut -c 1)" != Z ]
}

end() {
    local file=$dir/pids/$1 pid tries=0
    [ -s "$file" ] || return 0
    pid=$(cat "$file")
    rm "$file"
    # Another process may have the number by now.
    grep -qszxF "SLURM_FOLDER=$dir" "/proc/$pid/environ" || return 0
    kill "$pid" 2>/dev/null || return 0
    while alive "$pid" && [ "$tries" -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
}

start_node() {
    daemon "$1" "$1" slurmd -D -N "$1"
}

configure() {
    local accounting=$1 node other number
    cat >"$dir/slurm.conf" <<CONF
ClusterName=flodl
SlurmctldHost=$machine(127.0.0.1)
SlurmctldPort=$(free_port)
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/slurmctld
SlurmdSpoolDir=$dir/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MinJobAge=20
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=5
SlurmdParameters=config_overrides
CONF
    if [ "$accounting" ]; then
        cat >>"$dir/slurm.conf" <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$1
AccountingStoragePass=$dir/munge.socket
CONF
    fi
    for node in $machine $nodes; do
        # To itself each machine is 127.0.0.1: connections from there have this address. To the
        # others it has another one, so that no two nodes take themselves for the same.
        printf '127.0.0.1 %s localhost\n' "$node" >"$dir/hosts.$node"
        number=10
        for other in $nodes; do
            number=$((number + 1))
            [ "$other" = "$node" ] || printf '127.0.0.%s %s\n' "$number" "$other"
        done >>"$dir/hosts.$node"
    done
    for node in $nodes; do
        echo "NodeName=$node NodeAddr=127.0.0.1 Port=$(free_port) CPUs=4 RealMemory=4000"
    done >>"$dir/slurm.conf"
    cat >>"$dir/slurm.conf" <<CONF
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=cancel Nodes=ALL PriorityTier=1 PreemptMode=CANCEL
PartitionName=requeue Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE
PartitionName=short Nodes=ALL PriorityTier=1 MaxTime=1
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
CONF
}

start_accounting() {
    local port=$1
    mariadb-install-db --no-defaults --datadir="$dir/mariadb" --user=root --skip-test-db \
        --auth-root-authentication-method=normal --innodb-log-file-size=8M >"$dir/mariadb.out" 2>&1
    daemon mariadb "$machine" mariadbd --no-defaults --datadir="$dir/mariadb" --user=root \
        --socket="$dir/mariadb.socket" --pid-file="$dir/mariadb.pid" --skip-networking \
        --innodb-log-file-size=8M --innodb-flush-log-at-trx-commit=0
    until_ready mariadbd mariadb.out mariadb-admin --no-defaults --socket="$dir/mariadb.socket" ping
    cat >"$dir/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$port
CommunicationParameters=NoInAddrAny
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
LogFile=$dir/slurmdbd.log
PidFile=$dir/slurmdbd.pid
CONF
    chmod 600 "$dir/slurmdbd.conf"
    MYSQL_UNIX_PORT=$dir/mariadb.socket daemon slurmdbd "$machine" slurmdbd -D
    until_ready slurmdbd slurmdbd.log sacctmgr --immediate --noheader list cluster
}

start() {
    local accounting='' port='' owner=$PPID node
    while [ $# -gt 0 ]; do
        case $1 in
            --accounting) accounting=yes ;;
            --owner) owner=$2; shift ;;
            *) usage ;;
        esac
        shift
    done
    [ "$(id -u)" = 0 ] || fail "a cluster needs root" "sudo bash $0 start $dir"
    [ ! -e "$dir/pids" ] || fail "$dir has a cluster already" "bash $0 stop $dir"
    # shellcheck disable=SC2086 # one word per package
    install slurmctld $packages
    [ -z "$accounting" ] || install slurmdbd slurmdbd mariadb-server
    mkdir -p "$dir/pids" "$dir/slurmctld"
    head -c 128 /dev/urandom >"$dir/munge.key"
    chmod 600 "$dir/munge.key"
    [ -z "$accounting" ] || port=$(free_port)
    configure "$port"
    printf 'export SLURM_CONF="%s"\n' "$dir/slurm.conf" >"$dir/environment"
    # A folder that only its owner may read needs --force.
    daemon munge "$machine" munged --foreground --force --socket="$dir/munge.socket" \
        --key-file="$dir/munge.key" --pid-file="$dir/munge.pid" --seed-file="$dir/munge.seed" \
        --log-file="$dir/munge.log"
    until_ready munged munge.out munge --no-input --socket="$dir/munge.socket"
    if [ "$accounting" ]; then
        start_accounting "$port"
        sacctmgr --immediate add cluster flodl >/dev/null
    fi
    daemon slurmctld "$machine" slurmctld -D
    for node in $nodes; do
        start_node "$node"
    done
    until_ready "the cluster" slurmctld.log all_idle
    daemon owner "$machine" bash "${BASH_SOURCE[0]}" follow "$dir" "$owner"
}

all_idle() {
    [ "$(sinfo --noheader --partition=main --states=idle --Node | wc -l)" = 3 ]
}

# Ends the cluster after the process that wanted it.
follow() {
    while alive "$1"; do
        sleep 1
    done
    rm -f "$dir/pids/owner"
    stop
}

stop() {
    local name
    scancel --state=RUNNING,SUSPENDED --signal=KILL --full 2>/dev/null || true
    for name in owner $nodes slurmctld slurmdbd mariadb munge; do
        end "$name"
    done
    rm -rf "$dir/pids"
}

usage() {
    fail "usage: slurm.sh start DIR [--accounting] [--owner PID] | stop DIR | node DIR NAME"
}

[ $# -ge 2 ] || usage
action=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
shift 2
# For every program that is started here, and for what they start.
export SLURM_FOLDER=$dir SLURM_CONF=$dir/slurm.conf
case $action in
    start) start "$@" ;;
    stop) stop ;;
    follow) follow "$@" ;;
    node) start_node "$1" ;;
    *) usage ;;
esac
