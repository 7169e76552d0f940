# The first process of a node's namespaces. When it ends, the kernel kills all others in them.
# Arguments: the bed, the IPv4 and the IPv6 address of the node with their prefix lengths; the
# IPv6 one is empty where the node has none. Says "ready" and stays until its input ends.
set -eu
bed=$1 ipv4=$2 ipv6=$3

# The kubelet wants mounts to propagate between containers; nothing leaves this namespace, which
# unshare has cut off from its parent.
mount --make-rshared /

# What the components keep outside the bed lands in it: state below /run, caches of the CNI
# library and of the kubelet below /var.
mount -t tmpfs -o mode=755 tmpfs /run
for directory in /var/lib /var/log; do
    layer=$bed/masked$directory
    mkdir -p "$layer/upper" "$layer/work"
    mount -t overlay -o "lowerdir=$directory,upperdir=$layer/upper,workdir=$layer/work" \
        overlay "$directory"
done

# The kubelet sets these for the whole machine. Here it reads that they are set already.
mask() {
    mkdir -p "$bed/masked/sysctl/${1%/*}"
    echo "$2" >"$bed/masked/sysctl/$1"
    mount --bind "$bed/masked/sysctl/$1" "/proc/sys/$1"
}
mask vm/overcommit_memory 1
mask kernel/panic 10
mask kernel/panic_on_oops 1
mask kernel/keys/root_maxkeys 1000000
mask kernel/keys/root_maxbytes 25000000

# A bridge without ports carries the node's address: dummy links are not in every kernel. The
# default route leads nowhere; programs look at it to choose an address.
ip link set lo up
ip link add node0 type bridge
ip addr add "$ipv4" dev node0
ip link set node0 up
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
if [ -n "$ipv6" ]; then
    # Nobody else is on the link, so there is no duplicate to detect.
    ip addr add "$ipv6" dev node0 nodad
    ip -6 route add default dev node0
    echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
fi

echo ready
# Not the last command, so that the shell stays and reaps the orphans of the namespace.
cat >/dev/null
exit 0
