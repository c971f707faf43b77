# Functions of one machine that hand packets to each other through its kernel, in one network namespace: the kernel forwards what
# comes in through eth0 and eth1 to a function in user space, over bridges and tap interfaces, and what that gives back on.
# Usage: sh centralised.sh FLUSH WAIT
set -e
taut forward --port tap:in0 --port tap:in1 --flush "$1" --wait "$2" --quiet &
for side in 0 1; do
  until ip link show in$side > /dev/null 2>&1; do sleep 0.02; done
  ip link add br$side type bridge forward_delay 0
  ip link set in$side master br$side
  ip link set eth$side master br$side
  ip link set br$side up
done
echo "up: centralised"
wait
