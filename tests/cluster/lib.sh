# Names, addresses and paths of the cluster; the other programs of this directory source it.
# shellcheck shell=bash
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
repository=$(dirname "$(dirname "$here")")

# What is built and kept: Kubernetes' programs, images, certificates, logs, the nodes' disks.
state=${CLUSTER:-$repository/target/cluster}
programs=${KUBERNETES:-$state/kubernetes}
# Helm's library and a reader of YAML, which .ci/setup installs.
python=${XDG_CACHE_HOME:-$HOME/.cache}/fairlead/python
# Debian packages that are unpacked, not installed: their services would start on this machine.
debian=$state/debian
PATH="$programs:$PATH:$debian/usr/sbin:$debian/usr/bin:$debian/sbin:$debian/bin"
export KUBECONFIG=$state/certificates/admin.kubeconfig

# NAME:BYTE. A node's addresses are 172.30.0.BYTE and fd00:30::BYTE, and its pods have the subnet number BYTE - 10.
nodes=(cp:10 n1:11 n2:12)
# Begins the names of network namespaces and cgroups; clusters with different ones run beside each other.
prefix=${CLUSTER_PREFIX:-flc}
# The network namespace of the bridge. Its 172.30.0.1 is a client outside of the cluster: kubectl and the tests run there.
outside=$prefix-wire
server=https://172.30.0.10:6443
# The family of the first address of nodes, pods and Services, IPv4 or IPv6; both are used in any case.
primary=${CLUSTER_PRIMARY:-IPv4}

# An IPv4 and an IPv6 address or range: the first one, and both in order.
first() { if [ "$primary" = IPv6 ]; then echo "$2"; else echo "$1"; fi; }
both() { if [ "$primary" = IPv6 ]; then echo "$2,$1"; else echo "$1,$2"; fi; }

cluster_cidrs=$(both 10.244.0.0/16 fd00:10:244::/56)
service_cidrs=$(both 10.96.0.0/12 fd00:10:96::/112)
dns_ip=$(first 10.96.0.10 fd00:10:96::a)

say() { echo "cluster: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

# Runs a command outside of the cluster.
outside() { ip netns exec "$outside" "$@"; }

kubectl() { outside "$programs/kubectl" "$@"; }

# Runs a command in all namespaces of a node.
in_node() {
    local process
    process=$(pgrep -P "$(cat "$state/run/node-$1.pid")")
    shift
    nsenter -t "$process" -m -u -i -n -p -C -- "$@"
}

# Starts a program in a network namespace, in the background; its process id and log have its name.
start() {
    local name=$1 namespace=$2
    shift 2
    setsid nohup ip netns exec "$namespace" "$@" >>"$state/log/$name.log" 2>&1 </dev/null &
    echo $! >"$state/run/$name.pid"
}

# Ends a program that `start` started, with SIGTERM or the given signal.
stop() {
    local file=$state/run/$1.pid
    [ -s "$file" ] || return 0
    kill "${2:--TERM}" "$(cat "$file")" 2>/dev/null || true
    rm -f "$file"
}

# Waits until a command succeeds: SECONDS COMMAND...
await() {
    local seconds=$1
    shift
    for _ in $(seq $((seconds * 5))); do
        if "$@" >/dev/null 2>&1; then
            return
        fi
        sleep 0.2
    done
    fail "timed out after $seconds s: $*"
}
