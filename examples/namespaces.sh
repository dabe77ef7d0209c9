#!/bin/sh
# The all-reduce over shaped links, on one machine: every worker in a network namespace of its own,
# all joined by a bridge, each link limited in both directions. Linux, as root, with iproute2.
#
#   examples/namespaces.sh WORKERS RATE [FLAGS OF annulet bench collective...]
#   examples/namespaces.sh 4 200mbit -b 246824 -e 246824 -n 100
#
# Prints rank 0's table. ANNULET names the program (default: target/release/annulet). With TRAIN set,
# `annulet worker` runs instead, with the flags given; rank 0's summary is printed.
set -eu

if [ $# -lt 2 ] || [ "$(id -u)" != 0 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
workers=$1
rate=$2
shift 2
annulet=${ANNULET:-target/release/annulet}
prefix=annulet$$
folder=$(mktemp -d)

clean() {
    # Whatever still runs in the namespaces ends with them.
    for rank in $(seq 0 $((workers - 1))); do
        pids=$(ip netns pids "$prefix-$rank" 2>/dev/null || true)
        [ -z "$pids" ] || kill $pids 2>/dev/null || true
        ip netns delete "$prefix-$rank" 2>/dev/null || true
    done
    ip link delete "br$$" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

# A bucket of few packets, so that nothing passes faster than the rate; the queue holds half a second.
shape() { # DEVICE NAMESPACE
    tc ${2:+-n "$2"} qdisc add dev "$1" root tbf rate "$rate" burst 16kb latency 500ms
}

ip link add "br$$" type bridge
ip link set "br$$" up
peers=
for rank in $(seq 0 $((workers - 1))); do
    ip netns add "$prefix-$rank"
    ip link add "v$$-$rank" type veth peer name eth0 netns "$prefix-$rank"
    ip link set "v$$-$rank" master "br$$" up
    ip -n "$prefix-$rank" address add "10.77.0.$((rank + 1))/24" dev eth0
    ip -n "$prefix-$rank" link set lo up
    ip -n "$prefix-$rank" link set eth0 up
    shape "v$$-$rank" ""
    shape eth0 "$prefix-$rank"
    peers=$peers${peers:+,}10.77.0.$((rank + 1)):4400
done

"$annulet" key "$folder/cluster.key" >&2
command="bench collective"
[ -z "${TRAIN:-}" ] || command=worker
for rank in $(seq $((workers - 1)) -1 0); do
    output=$folder/$rank.txt
    ip netns exec "$prefix-$rank" "$annulet" $command --rank "$rank" --peers "$peers" \
        --cluster-key "$folder/cluster.key" "$@" >"$output" 2>"$folder/$rank.err" &
    last=$!
done
# Rank 0 was started last and prints for all.
if wait "$last"; then
    cat "$folder/0.txt"
else
    status=$?
    cat "$folder"/*.err >&2
    exit "$status"
fi
wait
