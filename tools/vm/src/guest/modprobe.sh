#!/bin/sh
# What the kernel runs, from the RAM disk, when it wants a module by itself: modprobe in the host's root.
exec /bin/chroot /mnt/root /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin modprobe "$@"
