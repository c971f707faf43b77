# One function of a machine, as an application of DPDK hands it packets through the kernel: the application takes them from eth0 in user
# space and gives them to the kernel (there KNI, here a tap interface), the kernel bridges them to the function, the function gives
# them back to the kernel, and the kernel to the application, which sends them through eth1. So packets cross between user
# space and kernel four times. All of it is in one network namespace.
# With `dpdk` the application is one of DPDK, and hands packets over by what has taken KNI's place there: virtio-user with vhost-net, or, where
# the kernel has no vhost-net, DPDK's driver of tap interfaces.
# Usage: sh centralised.sh FLUSH WAIT [dpdk]: how the application hands packets to the kernel and back at its end towards eth0, so that each
# packet waits for that once, and how it waits for packets.
set -e
wire() { [ "$how" = dpdk ] && echo "dpdk:net_af_packet$1,iface=eth$1" || echo "af_xdp:eth$1"; }
kernel() {
  if [ "$how" != dpdk ]; then echo "tap:kni$1"
  elif [ -e /dev/vhost-net ]; then echo "dpdk:net_virtio_user$1,path=/dev/vhost-net,iface=kni$1"
  else echo "dpdk:net_tap$1,iface=kni$1"
  fi
}
how=$3
taut forward --port "$(wire 0)" --port "$(kernel 0)" --flush "$1" --wait "$2" --quiet &
taut forward --port "$(wire 1)" --port "$(kernel 1)" --flush 'idle(32)' --wait "$2" --quiet &
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
