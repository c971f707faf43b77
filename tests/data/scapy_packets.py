#!/usr/bin/env python3
"""Prints frames for a router, right and broken, as scapy makes them.

What is to become of each: tests/parallel/route_scapy.rs. A line each: name, a tab, the frame in hexadecimal digits, a
tab, the frame as it goes on if it goes on: scapy makes the checksum of that anew. The first lines, whose names begin
with "neighbour", are questions by which the router learns where its neighbours are.
"""

import logging
import warnings

# Of missing things that only other layers need.
logging.getLogger("scapy").setLevel(logging.ERROR)
warnings.simplefilter("ignore")

from scapy.layers.inet import *
from scapy.layers.inet6 import *
from scapy.layers.ipsec import AH, ESP
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether, GRE
from scapy.packet import Raw
from scapy.utils import checksum

ROUTER = ["02:00:00:00:00:a0", "02:00:00:00:00:a1"]
SENDER, NEXT = "02:00:00:00:00:07", "02:00:00:00:00:09"
UDP4 = UDP(sport=4000, dport=4001) / Raw(b"v4" * 20)
UDP6 = UDP(sport=6000, dport=6001) / Raw(b"v6" * 20)


def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def gone_on(frame):
    """The frame on its next link, with a hop less."""
    if len(frame) < 34:
        return b""
    packet = bytearray(mac_bytes(NEXT) + mac_bytes(ROUTER[1]) + frame[12:])
    if packet[12:14] == b"\x08\x00":
        end = 14 + (packet[14] & 15) * 4
        packet[22] = max(packet[22], 1) - 1
        packet[24:26] = b"\0\0"
        packet[24:26] = checksum(bytes(packet[14:end])).to_bytes(2, "big")
    else:
        packet[21] = max(packet[21], 1) - 1
    return bytes(packet)


def put(name, frame):
    print(name, frame.hex(), gone_on(frame).hex(), sep="\t")


def show(name, packet, end=None, ethertype=None):
    """A packet from the sender to the router's first port; its first bytes only, if it ends early."""
    ether = {} if ethertype is None else {"type": ethertype}
    put(name, bytes(Ether(src=SENDER, dst=ROUTER[0], **ether) / packet)[:end])


def ip(**fields):
    return IP(**{"src": "10.0.0.7", "dst": "10.9.0.1", **fields})


def ip6(**fields):
    return IPv6(**{"src": "2001:db8::7", "dst": "2001:db8:9::1", **fields})


def neighbours():
    for name, port, mac, address in [("next", 1, NEXT, "10.0.1.9"), ("sender", 0, SENDER, "10.0.0.7")]:
        asked = ARP(op="who-has", hwsrc=mac, psrc=address, pdst=f"10.0.{port}.1")
        put(f"neighbour {name}", bytes(Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / asked))
    for name, port, mac, address in [("next6", 1, NEXT, "2001:db8:1::9"), ("sender6", 0, SENDER, "2001:db8::7")]:
        asked = ICMPv6ND_NS(tgt=f"2001:db8:{port}::1") / ICMPv6NDOptSrcLLAddr(lladdr=mac)
        group = Ether(src=mac, dst="33:33:ff:00:00:01") / IPv6(src=address, dst="ff02::1:ff00:1", hlim=255)
        put(f"neighbour {name}", bytes(group / asked))


def options():
    addresses = ["10.9.0.2", "10.9.0.3", "10.9.0.4"]
    for name, option in [
        ("no operation", [IPOption_NOP(), IPOption_NOP(), IPOption_NOP(), IPOption_EOL()]),
        ("end of list first", [IPOption_EOL(), IPOption_RR(routers=addresses)]),
        ("loose source route", [IPOption_LSRR(routers=addresses)]),
        ("strict source route", [IPOption_SSRR(routers=addresses)]),
        ("record route", [IPOption_RR(routers=["0.0.0.0"] * 9)]),
        ("timestamp", [IPOption_Timestamp(flg=1, internet_address="0.0.0.0", timestamp=0)]),
        ("security", [IPOption_Security()]),
        ("router alert", [IPOption_Router_Alert()]),
        ("stream", [IPOption_Stream_Id(security=7)]),
        ("MTU probe", [IPOption_MTU_Probe(mtu=68)]),
        ("traceroute", [IPOption_Traceroute()]),
        ("directed broadcast", [IPOption_SDBM(addresses=addresses)]),
        ("address extension", [IPOption_Address_Extension()]),
        ("unknown option", [IPOption(option=30, value=b"abcdef")]),
        ("option of no length", [IPOption(option=7, length=0)]),
        ("option of one byte", [IPOption(option=7, length=1)]),
        ("option beyond the header", [IPOption(option=7, length=200)]),
        ("40 bytes of options", [IPOption(b"\x01" * 40)]),
    ]:
        show(f"option: {name}", ip(options=option) / UDP4)
    show("option: one hop left", ip(options=[IPOption_RR(routers=addresses)], ttl=1) / UDP4)
    show("option: wrong checksum", ip(options=[IPOption_NOP()], chksum=0x1234) / UDP4)
    show("option: header says none", ip(options=[IPOption_RR(routers=addresses)], ihl=5) / UDP4)
    show("option: header ends in one", ip(options=[IPOption_RR(routers=addresses)], ihl=6) / UDP4)


def lengths():
    whole = len(ip() / UDP4)
    for length in [0, 1, 19, 20, 27, whole - 1, whole + 1, 0x8000, 0xffff]:
        show(f"length: {length} of {whole}", ip(len=length) / UDP4)
    for words in range(0, 5):
        show(f"header length: {words}", ip(ihl=words) / UDP4)
    # scapy makes the checksum of the header that it has written.
    show("header length: 6, without options", ip(ihl=6) / UDP4)
    show("header length: 15, without options", ip(ihl=15) / UDP4)
    show("header length: 15, beyond the packet", ip(ihl=15, len=20))
    show("length: nothing behind the header", ip())
    for end in [20, 33, 34, 60]:
        show(f"cut after {end} bytes", ip() / UDP4, end=end)
    for version in [0, 1, 2, 3, 5, 6, 7, 15]:
        show(f"version {version}", ip(version=version) / UDP4)
    show("version 4 in the type of 6", ip() / UDP4, ethertype=0x86dd)
    for sum in [0, 0xffff, 0x1234]:
        show(f"checksum {sum:#06x}", ip(chksum=sum) / UDP4)
    # What a router does not look at.
    show("UDP that is longer than its packet", ip() / UDP(len=0xffff))
    show("UDP of no bytes", ip() / UDP(len=0) / Raw(b"more"))
    show("UDP with a wrong checksum", ip() / UDP(chksum=0x1234) / Raw(b"more"))
    show("TCP whose header is longer than its packet", ip() / TCP(dataofs=15))
    show("TCP without a header", ip() / TCP(dataofs=0))
    show("TCP with all flags", ip() / TCP(flags="FSRPAUECN", reserved=7))
    show("protocol 255", ip(proto=255) / Raw(b"?" * 20))
    show("GRE in a loop", ip() / GRE() / ip() / GRE() / ip() / UDP4)
    nest = UDP4
    for _ in range(20):
        nest = ip() / nest
    show("20 packets in each other", nest)


def fragments():
    whole = ip(id=7, flags=0) / UDP(sport=1, dport=2) / Raw(b"fragment" * 12)
    for number, piece in enumerate(fragment(whole, fragsize=48)):
        show(f"fragment {number}", piece)
    for number, piece in enumerate(overlap_frag(whole, b"OVERLAP " * 3, fragsize=24)):
        show(f"overlapping fragment {number}", piece)
    # As Teardrop, Ping of Death and the tiny fragments of RFC 1858 have them.
    show("fragment within the first", ip(id=8, frag=3, flags=0) / Raw(b"x" * 4))
    show("fragment of no bytes", ip(id=8, frag=3, flags="MF"))
    show("fragment of odd length with more to come", ip(id=8, frag=3, flags="MF") / Raw(b"x" * 13))
    show("fragment beyond 64 KiB", ip(id=9, frag=0x1fff, flags=0, proto=1) / Raw(b"x" * 400))
    show("tiny first fragment", ip(id=9, flags="MF", proto=6) / Raw(b"x" * 8))
    show("fragment of a TCP header's rest", ip(id=9, frag=1, flags=0, proto=6) / Raw(b"x" * 16))
    show("fragment that must not be cut", ip(id=9, frag=1, flags="DF+MF") / Raw(b"x" * 16))
    show("reserved flag", ip(flags="evil") / UDP4)
    show("fragment with no hops left", ip(id=9, frag=2, flags=0, ttl=1) / Raw(b"x" * 16))


def senders():
    for source in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"]:
        show(f"from {source}", ip(src=source) / UDP4)
    for to in ["0.0.0.0", "127.0.0.1", "240.0.0.1", "255.255.255.255"]:
        show(f"to {to}", ip(dst=to) / UDP4)
    show("to a group", ip(dst="224.0.0.5") / UDP4)
    show("no hops", ip(ttl=0) / UDP4)
    show("one hop", ip(ttl=1) / UDP4)
    show("echo request with one hop", ip(ttl=1) / ICMP() / Raw(b"echo"))
    show("error with one hop", ip(ttl=1) / ICMP(type=3, code=1) / ip() / UDP4)
    show("no route", ip(dst="192.0.2.1") / UDP4)
    show("tagged twice", Dot1AD(vlan=5) / Dot1Q(vlan=6) / ip() / UDP4)
    show("longest echo request to the router", ip(dst="10.0.0.1") / ICMP(id=1, seq=1) / Raw(b"e" * 1400))
    show("echo request with a wrong checksum", ip(dst="10.0.0.1") / ICMP(chksum=0x1234) / Raw(b"echo"))


def extensions():
    chain = [
        ("hop-by-hop", IPv6ExtHdrHopByHop(options=[PadN(optdata=b"\0" * 4)])),
        ("router alert", IPv6ExtHdrHopByHop(options=[RouterAlert()])),
        ("destination options", IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 4)])),
        ("home address", IPv6ExtHdrDestOpt(options=[HAO(hoa="2001:db8::77")])),
        ("routing of type 0", IPv6ExtHdrRouting(type=0, addresses=["2001:db8:9::2"] * 3)),
        ("routing of type 2", IPv6ExtHdrRouting(type=2, addresses=["2001:db8:9::2"])),
        ("routing of type 253", IPv6ExtHdrRouting(type=253, segleft=7)),
        ("segment routing", IPv6ExtHdrSegmentRouting(addresses=["2001:db8:9::2", "2001:db8:9::3"])),
        ("atomic fragment", IPv6ExtHdrFragment(id=7)),
        ("first fragment", IPv6ExtHdrFragment(id=7, m=1)),
        ("reserved bits of a fragment", IPv6ExtHdrFragment(id=7, res1=0xff, res2=3)),
    ]
    for name, header in chain:
        show(f"extension: {name}", ip6() / header / UDP6)
    show("extension: authenticated", ip6() / AH(spi=7, seq=1, icv=b"i" * 12) / UDP6)
    show("extension: encapsulated", ip6() / ESP(spi=7, seq=1, data=b"secret" * 8))
    show("extension: mobility", ip6() / MIP6MH_BU())
    show("extension: nothing behind", ip6(nh=59) / Raw(b"left over"))
    for number in [139, 140, 253, 254, 255]:
        show(f"extension: number {number}", ip6(nh=number) / Raw(b"\x3b\0\0\0\0\0\0\0"))
    every = ip6()
    for _, header in chain:
        every = every / header.copy()
    show("extension: all", every / UDP6)
    backwards = ip6()
    for _, header in reversed(chain):
        backwards = backwards / header.copy()
    show("extension: all, the last one first", backwards / UDP6)
    many = ip6()
    for _ in range(60):
        many = many / IPv6ExtHdrDestOpt()
    show("extension: 60 of a kind", many / UDP6)
    show("extension: beyond the packet", ip6() / IPv6ExtHdrDestOpt(len=255) / UDP6)
    show("extension: option beyond its header", ip6() / IPv6ExtHdrHopByHop(options=[PadN(optlen=200)]) / UDP6)
    show("extension: option to be told of", ip6() / IPv6ExtHdrDestOpt(options=[HBHOptUnknown(otype=0xc3)]) / UDP6)
    jumbo = IPv6ExtHdrHopByHop(options=[Jumbo(jumboplen=70_000)])
    show("extension: jumbo of no length", ip6(plen=0) / jumbo / UDP6)
    show("extension: jumbo with a length", ip6() / jumbo / UDP6)
    show("extension: one hop left", ip6(hlim=1) / IPv6ExtHdrDestOpt() / UDP6)
    long = ip6() / IPv6ExtHdrFragment(id=9) / UDP(sport=1, dport=2) / Raw(b"fragment" * 300)
    for number, piece in enumerate(fragment6(long, 1280)):
        show(f"fragment of IPv6 {number}", piece)
    for offset, more in [(0, 1), (1, 1), (2, 0), (0x1fff, 1), (0x1fff, 0)]:
        piece = ip6() / IPv6ExtHdrFragment(id=10, offset=offset, m=more, nh=17) / Raw(b"overlaps" * 3)
        show(f"overlapping fragment of IPv6 at {offset}, {'more' if more else 'last'}", piece)


def lengths6():
    whole = len(UDP6)
    for length in [0, 1, whole - 1, whole + 1, 0xffff]:
        show(f"payload: {length} of {whole}", ip6(plen=length) / UDP6)
    show("payload: none", ip6(nh=59))
    for end in [20, 53, 54, 60]:
        show(f"IPv6 cut after {end} bytes", ip6() / UDP6, end=end)
    for version in [0, 1, 4, 5, 7, 15]:
        show(f"IPv6 of version {version}", ip6(version=version) / UDP6)
    show("version 6 in the type of 4", ip6() / UDP6, ethertype=0x0800)
    show("traffic class and flow label", ip6(tc=0xff, fl=0xfffff) / UDP6)
    for source in ["::", "::1", "ff02::1", "fe80::7"]:
        show(f"from {source}", ip6(src=source) / UDP6)
    for to in ["::", "::1", "fe80::77"]:
        show(f"to {to}", ip6(dst=to) / UDP6)
    show("to a group of IPv6", ip6(dst="ff05::2") / UDP6)
    show("IPv6 without hops", ip6(hlim=0) / UDP6)
    show("IPv6 with one hop", ip6(hlim=1) / UDP6)
    show("no route of IPv6", ip6(dst="2001:db8:99::1") / UDP6)
    show("echo request of IPv6 with one hop", ip6(hlim=1) / ICMPv6EchoRequest())
    show("error of IPv6 with one hop", ip6(hlim=1) / ICMPv6DestUnreach() / ip6() / UDP6)


for some in [neighbours, options, lengths, fragments, senders, extensions, lengths6]:
    some()
