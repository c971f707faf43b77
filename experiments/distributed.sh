# XDP forwarding, then a forwarder in user space, each in a network namespace of its own, between the nodes client and server, which
# have left the names of their namespaces in `namespace`. With `vm` each function is in a virtual machine of its own, as in the paper: XDP in
# the kernel of the first, DPDK in the second.
# Usage: sh distributed.sh WAIT [vm]
set -e
placement=namespaces machine=
[ "$2" = vm ] && placement=vm machine='[machine]
port = "dpdk"'
cat > chain.toml <<END
name = "taut-distributed"
placement = "$placement"
wait = "$1"
ports = [
    "veth:eth0,netns=$(cat ../client/namespace),address=192.0.2.1/24",
    "veth:eth0,netns=$(cat ../server/namespace),address=192.0.2.2/24",
]
$machine
[[function]]
name = "forward"
place = "kernel"
[[function]]
name = "forward"
place = "user"
END
exec taut chain up chain.toml --quiet
