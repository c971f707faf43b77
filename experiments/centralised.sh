# One function of a machine, as an application of DPDK hands it packets through the kernel: the application takes them from eth0 in user
# space and gives them to the kernel (there KNI, here a tap interface), the kernel bridges them to the function, the function gives
# them back to the kernel, and the kernel to the application, which sends them through eth1. So packets cross between user
# space and kernel four times. All of it is in one network namespace.
# With `dpdk` the application is one of DPDK, and hands packets over by what has taken KNI's place there: virtio-user with vhost-net, or, where
# the kernel has no vhost-net, DPDK's driver of tap interfaces.
# Usage: sh centralised.sh FLUSH WAIT [dpdk]: how the application hands packets to the kernel and back at its end towards eth0, so that each
# packet waits for that once, and how it waits for packets.
set -e
if [ "$3" = dpdk ]; then
  kni=net_tap path=
  [ -e /dev/vhost-net ] && kni=net_virtio_user path=,path=/dev/vhost-net
  taut forward --port dpdk:net_af_packet0,iface=eth0 --port "dpdk:${kni}0$path,iface=kni0" \
    --port dpdk:net_af_packet1,iface=eth1 --port "dpdk:${kni}1$path,iface=kni1" --flush "$1" --wait "$2" --quiet &
else
  taut forward --port af_xdp:eth0 --port tap:kni0 --flush "$1" --wait "$2" --quiet &
  taut forward --port af_xdp:eth1 --port tap:kni1 --flush 'idle(32)' --wait "$2" --quiet &
fi
taut forward --port tap:in0 --port tap:in1 --wait interrupt --quiet &
for side in 0 1; do
  for interface in in$side kni$side; do
    until ip link show "$interface" > /dev/null 2>&1; do sleep 0.02; done
  done
  ip link add br$side type bridge forward_delay 0
  for interface in in$side kni$side; do
    ip link set "$interface" master br$side
    ip link set "$interface" up
  done
  ip link set br$side up
done
echo "up: centralised"
wait
