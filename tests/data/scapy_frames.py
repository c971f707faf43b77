#!/usr/bin/env python3
"""Prints frames that rules of a switch may be about, as scapy makes them: COUNT lines of hexadecimal digits.

Usage: scapy_frames.py SEED COUNT. Fields have few values each, so that rules made by the same few values meet
(tests/parallel/switch_beside.rs). Each frame ends with its number, counted from 1.
"""

import logging
import random
import sys

# Of missing things that only other layers need.
logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Raw

STATIONS = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"]
GROUPS = ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"]
PORTS = [42, 43, 1000]


def transport(one_of, is_v6):
    ports = {"sport": one_of(PORTS), "dport": one_of(PORTS)}
    echo = [ICMPv6EchoRequest, ICMPv6EchoReply] if is_v6 else [lambda **of: ICMP(type=kind, **of) for kind in (0, 8)]
    return one_of([UDP(**ports), TCP(flags="A", **ports), one_of(echo)(id=1, seq=1)])


def frame(one_of):
    ether = Ether(src=one_of(STATIONS), dst=one_of(STATIONS + GROUPS))
    if one_of(range(5)) < 2:
        ether /= Dot1Q(prio=one_of([0, 3]), vlan=one_of([5, 6]))
    kind, hops, service = one_of(range(4)), one_of([1, 2, 64, 64, 64]), one_of([0, 46 << 2, 1])
    if kind == 0:
        ends = {"psrc": f"10.0.0.{one_of(range(1, 5))}", "pdst": f"10.0.0.{one_of(range(1, 5))}"}
        return ether / ARP(op=one_of([1, 2]), hwsrc=STATIONS[0], **ends)
    if kind == 1:
        ends = {"src": f"2001:db8::{one_of(range(1, 5))}", "dst": f"2001:db8::{one_of(range(1, 5))}"}
        return ether / IPv6(hlim=hops, tc=service, **ends) / transport(one_of, True)
    end = lambda: f"10.0.{one_of([0, 1])}.{one_of(range(1, 5))}"
    return ether / IP(src=end(), dst=end(), ttl=hops, tos=service) / transport(one_of, False)


drawn = random.Random(int(sys.argv[1]))
for number in range(1, int(sys.argv[2]) + 1):
    print(bytes(frame(drawn.choice) / Raw(number.to_bytes(4, "big"))).hex())
