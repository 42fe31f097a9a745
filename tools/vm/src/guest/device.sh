# Creates the RDMA devices: device.sh rxe|rxe-pair|softcx MTU COUNT (an empty MTU leaves the link's own).
#
#   rxe       rxe0 on the dummy link net0, 10.9.9.1/24 and fd00:9:9::1/64
#   softcx    mlx5_0 to mlx5_COUNT-1 are the driver's own, which was loaded before; here they are waited for
#   rxe-pair  rxe0 and rxe1 on the two ends net0 and net1 of a veth pair, 10.9.9.1 and .2, fd00:9:9::1 and ::2
#
# GID index 0 is the link-local address, 1 the IPv4 address (::ffff:10.9.9.N), 2 the IPv6 address.
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
kind=$1 mtu=$2 adapters=$3

if [ "$kind" = softcx ]; then
    n=0
    while [ $n -lt $adapters ]; do
        tries=0
        until grep -qs ACTIVE /sys/class/infiniband/mlx5_$n/ports/1/state && [ -c /dev/infiniband/uverbs$n ]; do
            tries=$((tries + 1))
            [ $tries -lt 200 ] || { echo "mlx5_$n has no active port after 10 s"; dmesg | grep -i mlx5; exit 1; }
            sleep 0.05
        done
        n=$((n + 1))
    done
    exit
fi

# Without duplicate address detection an IPv6 address, and so its GID, is usable at once.
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad

case $kind in
rxe) count=1; ip link add net0 address 02:00:00:09:09:01 type dummy ;;
rxe-pair) count=2; ip link add net0 address 02:00:00:09:09:01 type veth peer name net1 address 02:00:00:09:09:02 ;;
*) echo "unknown device kind $kind" >&2; exit 1 ;;
esac

n=0
while [ $n -lt $count ]; do
    ip -batch - <<BATCH
link set net$n ${mtu:+mtu $mtu} up
addr add 10.9.9.$((n + 1))/24 dev net$n
addr add fd00:9:9::$((n + 1))/64 dev net$n nodad
BATCH
    n=$((n + 1))
done

if [ $count = 2 ]; then
    # Both ends are in one network namespace. Packets between them take the wire all the same, because rxe looks its
    # routes up with the outgoing link given:
    # - IPv4: the local table then passes the peer's address over, since it belongs to the other link there. On arrival
    #   the source is an address of this host's own, which accept_local lets in.
    # - IPv6: the local table knows no such difference, so a rule for the outgoing link has to come before it.
    # The fixed neighbours spare address resolution, so that impairments on the link hit nothing but RDMA traffic.
    ip -6 -batch - <<BATCH
rule add pref 1000 lookup local
rule del pref 0
rule add pref 100 oif net0 lookup 100
rule add pref 101 oif net1 lookup 101
route add fd00:9:9::2 dev net0 table 100
route add fd00:9:9::1 dev net1 table 101
BATCH
    for n in 0 1; do
        echo 1 >/proc/sys/net/ipv4/conf/net$n/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/net$n/rp_filter
        peer=$((2 - n))
        ip -batch - <<BATCH
neigh replace 10.9.9.$peer lladdr 02:00:00:09:09:0$peer dev net$n nud permanent
neigh replace fd00:9:9::$peer lladdr 02:00:00:09:09:0$peer dev net$n nud permanent
neigh replace fe80::ff:fe09:90$peer lladdr 02:00:00:09:09:0$peer dev net$n nud permanent
BATCH
    done
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
fi

n=0
while [ $n -lt $count ]; do
    rdma link add rxe$n type rxe netdev net$n
    n=$((n + 1))
done

# GIDs are filled in by a kernel worker, and the port turns active by another.
n=0
while [ $n -lt $count ]; do
    port=/sys/class/infiniband/rxe$n/ports/1 tries=0
    until grep -q ACTIVE $port/state && grep -qs '[1-9a-f]' $port/gids/1 $port/gids/2; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { echo "rxe$n has no active port with an address after 10 s" >&2; exit 1; }
        sleep 0.05
    done
    n=$((n + 1))
done
