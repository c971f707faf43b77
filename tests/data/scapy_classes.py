#!/usr/bin/env python3
"""Prints frames that scapy makes, each with the ingress port and the class that scapy's fields give it.

Usage: scapy_classes.py > scapy_classes.txt. A line has port, class and bytes. The rules are those of `RULES` in
crates/function/src/classifier/tests.rs.
"""

import logging
import random

logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.layers.sctp import SCTP, SCTPChunkInit
from scapy.packet import Raw
from scapy.utils import atol

COUNT = 160
drawn = random.Random(7)
one_of = drawn.choice


def frame():
    layers = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    if one_of([0, 0, 1]):
        layers /= Dot1AD(vlan=one_of([5, 6])) if one_of([0, 1]) else Dot1Q(vlan=one_of([5, 6]), prio=3)
        if one_of([0, 1]):
            layers /= Dot1Q(vlan=one_of([5, 6]))
    kind = one_of(range(8))
    if kind == 0:
        return layers / ARP(psrc="10.0.0.1", pdst="10.0.0.2")
    service = one_of([0, 46 << 2, 46 << 2 | 1, 10 << 2])
    transport = one_of(
        [
            UDP(sport=one_of([53, 5000, 9]), dport=one_of([53, 5000, 5999, 6000])),
            TCP(sport=one_of([53, 443]), dport=one_of([443, 5000]), flags="S"),
            SCTP(sport=7, dport=one_of([5000, 8])) / SCTPChunkInit(),
        ]
    )
    if kind < 4:
        ends = {"src": one_of(["2001:db8::1", "2001:db9::1"]), "dst": one_of(["2001:db8::2", "fe80::1"])}
        ip = IPv6(tc=service, **ends)
        more = one_of([None, None, IPv6ExtHdrDestOpt(), IPv6ExtHdrFragment(id=7, m=1), IPv6ExtHdrFragment(id=7, offset=9)])
        if more is not None:
            ip /= more
        if isinstance(more, IPv6ExtHdrFragment) and more.offset:
            more.nh = one_of([6, 17])
            return layers / ip / Raw(bytes(range(64)))
        return layers / ip / one_of([transport, transport, ICMPv6EchoRequest(data=b"12345678")]) / Raw(b"data" * 8)
    ends = {"src": one_of(["10.0.0.1", "10.1.0.1"]), "dst": one_of(["10.0.0.2", "192.0.2.9"])}
    cut = one_of([{}, {}, {}, {"flags": "MF"}, {"frag": 5, "proto": 17}])
    ip = IP(tos=service, options=[one_of([b"\x01\x01\x01\x01"])] if one_of([0, 0, 1]) else [], **ends, **cut)
    return layers / ip / one_of([transport, transport, ICMP()]) / Raw(b"data" * 8)


def is_in(address, net, length):
    return atol(address) >> (32 - length) == atol(net) >> (32 - length)


def class_of(port, packet):
    ip = packet.getlayer(IP) or packet.getlayer(IPv6)
    v6 = ip is not None and ip.version == 6
    vlan = packet[1].vlan if isinstance(packet[1], (Dot1Q, Dot1AD)) else None
    if ip is None:
        return "none" if packet.haslayer(ARP) and port == 1 else "forward"
    service = (ip.tc if v6 else ip.tos) >> 2
    extension = packet.getlayer(IPv6ExtHdrFragment)
    is_fragment = bool(extension) if v6 else bool(ip.frag) or "MF" in str(ip.flags)
    last = ip
    while isinstance(last.payload, (IPv6ExtHdrDestOpt, IPv6ExtHdrFragment)):
        last = last.payload
    protocol = last.nh if v6 else ip.proto
    upper = None if is_fragment else next((packet.getlayer(it) for it in (UDP, TCP, SCTP) if packet.haslayer(it)), None)
    if port == 0 and service == 46 and upper is not None and 5000 <= upper.dport <= 5999 and protocol == 17:
        return "voice"
    if vlan == 6 and v6:
        return "forward"
    if not v6 and (is_in(ip.src, "10.1.0.0", 16) or is_in(ip.dst, "10.1.0.0", 16)):
        return "bulk"
    if protocol == 132:
        return "drop"
    if upper is not None and upper.sport == 53:
        return "voice"
    if v6 and ip.src.startswith("2001:db8:"):
        return "bulk"
    return "forward"


NAMES = {"none": "drop"}
for number in range(COUNT):
    port = number % 2
    data = bytes(frame())
    name = class_of(port, Ether(data))
    print(port, NAMES.get(name, name), data.hex())
