# Unloads the driver of the software ConnectX, and looks whether the kernel had anything to say against this run.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
status=0
for module in ib_umad ib_ipoib rdma_ucm rdma_cm mlx5_ib mlx5_core; do
    grep -q "^$module " /proc/modules || continue
    rmmod $module || { echo "$module does not unload"; status=1; }
done
# A warning, a bug or an oops of the kernel, or a command that the firmware never answered.
bad='WARNING:|BUG:|Oops|Call Trace|general protection|refcount_t|leaked|timeout. Will cause|Command completion arrived'
if dmesg | grep -qE "$bad"; then
    echo "the kernel said:"
    dmesg | grep -E -B 3 -A 25 "$bad" | head -80
    status=1
fi
exit $status
