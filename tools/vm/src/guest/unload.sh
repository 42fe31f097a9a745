# Unloads the driver of the software ConnectX, and looks whether the kernel had anything to say against this run.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
status=0
for module in ib_umad ib_ipoib rdma_ucm rdma_cm mlx5_ib mlx5_core; do
    grep -q "^$module " /proc/modules || continue
    rmmod $module || { echo "$module does not unload"; status=1; }
done

# A warning, a bug or an oops of the kernel, a task that hangs, or a command that the firmware never answered, whoever tells of it.
bad='WARNING:|BUG:|Oops|Call Trace|general protection|refcount_t|leaked|blocked for more than|timeout. Will cause|Command completion arrived'
# And every warning and error of the driver's and the RDMA core's, such as a command that the firmware refused (mlx5_cmd_out_err).
ours='mlx5|infiniband|uverbs|ib_core|rdma'
# But for this: the model has no vendor-specific capability in its configuration space, by which tools reset and dump an adapter. The
# driver asks for it once as it starts, and does without.
benign='mlx5_pci_vsc_init:[0-9]*:\(pid [0-9]*\): Failed to get valid vendor specific ID$'
said=/run/vm/said
{
    dmesg | grep -E "$bad"
    dmesg --level=emerg,alert,crit,err,warn | grep -E "$ours" | grep -vE "$benign"
} | sort -u | grep -vEf /run/vm/allowed >$said
# Of a pattern that is none grep says so, and lets nothing through.
[ $? -lt 2 ] || { echo "the kernel's log was not looked at: a pattern of --allow-log is no extended regular expression"; status=1; }
if [ -s $said ]; then
    echo "the kernel said:"
    dmesg | grep -F -B 3 -A 25 -f $said | head -80
    status=1
fi
exit $status
