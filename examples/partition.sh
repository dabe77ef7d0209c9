#!/bin/sh
# A group of four workers whose network is cut in two, on one machine: every worker in a network
# namespace of its own, all joined by a bridge, until some are moved to another bridge. Linux, as
# root, with iproute2.
#
#   examples/partition.sh [FLAGS OF annulet worker...]
#
# Cuts two against two, then rank 0 from the other three, each in a run of its own, and prints how
# each worker ended and what it said of it. ANNULET names the program (default:
# target/release/annulet).
set -eu

if [ "$(id -u)" != 0 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
annulet=${ANNULET:-target/release/annulet}
prefix=annulet$$
folder=$(mktemp -d)
ranks='0 1 2 3'

clean() {
    # Whatever still runs in the namespaces ends with them.
    for rank in $ranks; do
        pids=$(ip netns pids "$prefix-$rank" 2>/dev/null || true)
        [ -z "$pids" ] || kill $pids 2>/dev/null || true
        ip netns delete "$prefix-$rank" 2>/dev/null || true
    done
    ip link delete "br$$" 2>/dev/null || true
    ip link delete "cut$$" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

peers=
for bridge in br$$ cut$$; do
    ip link add "$bridge" type bridge
    ip link set "$bridge" up
done
for rank in $ranks; do
    ip netns add "$prefix-$rank"
    ip link add "v$$-$rank" type veth peer name eth0 netns "$prefix-$rank"
    ip link set "v$$-$rank" up
    ip -n "$prefix-$rank" address add "10.78.0.$((rank + 1))/24" dev eth0
    ip -n "$prefix-$rank" link set lo up
    ip -n "$prefix-$rank" link set eth0 up
    peers=$peers${peers:+,}10.78.0.$((rank + 1)):4400
done
"$annulet" key "$folder/cluster.key" >/dev/null 2>&1

# Long enough for what is to happen in it, on any machine: rank 1 takes 20 ms longer a step.
run="--dataset synthetic --train-limit 320 --test-limit 20 --batch 32 --kernels reference"
run="$run --steps 200"

part() { # NAME CUT-OFF-RANKS FLAGS...
    name=$1
    cut_off=$2
    shift 2
    out=$folder/$name
    mkdir "$out"
    for rank in $ranks; do
        ip link set "v$$-$rank" master "br$$"
        { # The exit code is read when all are over.
            status=0
            ip netns exec "$prefix-$rank" "$annulet" worker --rank "$rank" --peers "$peers" \
                --cluster-key "$folder/cluster.key" --out "$out/$rank" $run --straggler 1:20 "$@" \
                >/dev/null 2>"$out/$rank.err" || status=$?
            echo "$status" >"$out/$rank.code"
        } &
    done
    until [ -s "$out/0/metrics.jsonl" ] && [ "$(wc -l <"$out/0/metrics.jsonl")" -gt 2 ]; do
        sleep 0.1
    done
    for rank in $cut_off; do
        ip link set "v$$-$rank" master "cut$$"
    done
    wait
    echo "== $name: cut off: $cut_off"
    for rank in $ranks; do
        printf 'rank %s: exit code %s, ' "$rank" "$(cat "$out/$rank.code")"
        grep -hE '^(generation|annulet: )' "$out/$rank.err" || echo 'nothing said'
        ls "$out/$rank" 2>/dev/null | grep checkpoint | sed "s/^/        left /" || true
    done
    for rank in $ranks; do
        if [ -f "$out/$rank/run.json" ]; then
            grep params_sha256 "$out/$rank/run.json"
        fi
    done
}

part two-against-two "2 3" "$@"
part three-against-one 0 "$@"
echo "== nothing happens"
"$annulet" train --out "$folder/quiet" $run "$@" >/dev/null 2>&1
grep params_sha256 "$folder/quiet/run.json"
