#!/bin/sh
# Process 1 of the guest: mounts the host's root, sets the devices up, runs the command, reports its exit status.
#
# Runs in the initial RAM disk with busybox alone. Beside it lie the files that this run's arguments decided:
#   /job/config    shell variables: VM_DEVICE VM_MTU VM_ADAPTERS VM_SEAT VM_UID VM_MODULES
#   /job/shares    the host directories to mount read-write, one a line (9p tags share0, share1, …)
#   /job/command   the script to run in the host's root
#   /job/device    the script that creates the RDMA devices there
#   /job/unload    the script that unloads their driver and looks at the kernel's log
#   /job/allowed   what that log may hold all the same, an extended regular expression a line
#   /job/early     the modules to insert, one file a line, each after those it needs
#
# The three virtio ports carry stdout, stderr and the report, a line each: "begin", then "exit N", or "fail" and the reason. One of a
# pair says "ready" first and waits for a line, and the server says "listening" in between.
export PATH=/bin
OUT=/dev/vport0p1 ERR=/dev/vport0p2 REPORT=/dev/vport0p3 ROOT=/mnt/root

fail() {
    echo "vm-init: $1"
    { echo fail; echo "$1"; } >$REPORT
    poweroff -f
}

# Kills what is outside this script's own session, which is also that of the kernel's threads. True if nothing is.
end_leftovers() {
    left=
    for process in /proc/[0-9]*; do
        read -r line 2>/dev/null <$process/stat || continue
        # "PID (NAME) STATE PARENT GROUP SESSION …", and a name may hold anything.
        set -- ${line##*) }
        if [ "$1" != Z ] && [ "$4" != 0 ]; then
            kill -9 ${process#/proc/} 2>/dev/null
            left="$left ${line%%) *})"
        fi
    done
    [ -z "$left" ]
}

# Whether a program of the guest listens on a TCP port.
listens() {
    for table in /proc/net/tcp /proc/net/tcp6; do
        while read -r _ _ _ state _; do
            [ "$state" = 0A ] && return 0
        done <$table
    done
    return 1
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
. /job/config

while read -r module; do insmod "$module"; done </job/early

# The ports appear when the driver has talked to the device.
tries=0
until [ -c $REPORT ]; do
    tries=$((tries + 1))
    [ $tries -gt 1000 ] && { echo "vm-init: the kernel shows no virtio serial port"; poweroff -f; }
    usleep 10000
done

# The host's root, read-only, under a layer of memory that takes every write.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /mnt/host 2>/job/log ||
    fail "the host's root does not mount: $(cat /job/log)"
mount -t tmpfs layer /mnt/layer
mkdir /mnt/layer/upper /mnt/layer/work
mount -t overlay -o lowerdir=/mnt/host,upperdir=/mnt/layer/upper,workdir=/mnt/layer/work root $ROOT 2>/job/log ||
    fail "the layer over the host's root does not mount: $(cat /job/log)"
mkdir -p $ROOT/proc $ROOT/sys $ROOT/dev $ROOT/run
for dir in proc sys dev; do mount --bind /$dir $ROOT/$dir; done
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 pts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mount -t tmpfs -o mode=755 run $ROOT/run
modules=$ROOT/lib/modules/$(uname -r)
mkdir -p "$modules"
mount --bind "$ROOT$VM_MODULES" "$modules" ||
    fail "no modules at $VM_MODULES"
echo /bin/modprobe >/proc/sys/kernel/modprobe

index=0
while IFS= read -r share; do
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap "share$index" "$ROOT$share" 2>/job/log ||
        fail "the shared directory $share does not mount: $(cat /job/log)"
    index=$((index + 1))
done </job/shares

mkdir -p $ROOT/run/vm/home
cp /job/command /job/device /job/unload /job/allowed $ROOT/run/vm/
chown "$VM_UID:$VM_UID" $ROOT/run/vm/home
hostname "${VM_SEAT:-vm}"
ip link set lo up
if [ -n "$VM_SEAT" ]; then
    case $VM_SEAT in server) number=1 ;; *) number=2 ;; esac
    ip link set eth0 up && ip addr add 10.9.10.$number/24 dev eth0 || fail "there is no link between the guests"
    printf '10.9.10.1 server\n10.9.10.2 client\n' >>$ROOT/etc/hosts
fi

if [ "$VM_DEVICE" != none ]; then
    chroot $ROOT /bin/sh /run/vm/device "$VM_DEVICE" "$VM_MTU" "$VM_ADAPTERS" </dev/null >/job/log 2>&1 ||
        fail "the device $VM_DEVICE could not be created: $(cat /job/log)"
fi

# Pipes rather than the ports themselves: a port opens once only, and programs reopen /dev/stdout.
mkfifo /job/out /job/err
chmod 666 /job/out /job/err
cat /job/out >$OUT &
copiers=$!
cat /job/err >$ERR &
copiers="$copiers $!"

if [ -n "$VM_SEAT" ]; then
    # One descriptor for both ways: what comes in while a port is closed is lost.
    exec 3<>$REPORT
    echo ready >&3
    read -r _ <&3
    exec 3>&-
fi

echo begin >$REPORT
watcher=
if [ "$VM_SEAT" = server ]; then
    { until listens; do usleep 50000; done; echo listening >$REPORT; } &
    watcher=$!
fi
setsid chroot $ROOT /bin/sh /run/vm/command </dev/null >/job/out 2>/job/err
status=$?
if [ -n "$watcher" ]; then
    # Two cannot have the port open.
    kill $watcher 2>/dev/null
    wait $watcher
fi

# What the command left running would hold the pipes open.
tries=0
until end_leftovers; do
    tries=$((tries + 1))
    [ $tries -gt 500 ] && fail "the command exited with $status, and what it left running does not end:$left"
    usleep 10000
done
wait $copiers

if [ "$VM_DEVICE" = softcx ]; then
    chroot $ROOT /bin/sh /run/vm/unload </dev/null >/job/log 2>&1 ||
        fail "the command exited with $status, but: $(cat /job/log)"
fi

tac /job/shares | while IFS= read -r share; do umount "$ROOT$share"; done
sync
echo "exit $status" >$REPORT
poweroff -f
