#!/usr/bin/env python3
"""Makes the corpus by which the function `ips` is held against Suricata.

corpus.py FOLDER writes NAME.rules and NAME.pcap.gz for each part, but for sample.rules, which `taut ips sample` prints. Every
other rule has a port of its own, to which packets go that it fits and packets that it does not. Needs scapy (python3-scapy), so
that whoever makes the frames is neither of the two programs.
"""

import base64
import gzip
import hashlib
import io
import os
import struct
import sys

from scapy.all import (
    DNS,
    DNSQR,
    DNSRR,
    ICMP,
    IP,
    TCP,
    UDP,
    Ether,
    ICMPv6EchoRequest,
    ICMPv6EchoReply,
    IPOption,
    IPv6,
    IPv6ExtHdrFragment,
    Raw,
    fragment,
    fragment6,
)

CLIENT, SERVER = "10.1.0.1", "10.2.0.1"
CLIENT6, SERVER6 = "2001:db8:1::1", "2001:db8:2::1"
# Time of the first packet, and default time between two packets.
BEGIN_US, STEP_US = 1_600_000_000_000_000, 2_000


class Part:
    """Rules and the packets for them."""

    def __init__(self, name, first_sid):
        self.name, self.sid = name, first_sid
        self.rules, self.frames = [], []
        self.now_us = BEGIN_US
        self.identification = 0

    def rule(self, header, options, action="alert"):
        """Adds a rule, `$PORT` in whose header is a port of its own, and returns the port."""
        self.sid += 1
        port = 10_000 + self.sid % 10_000
        options = options.strip().rstrip(";")
        text = f"{action} {header.replace('$PORT', str(port))} (" + (f"{options}; " if options else "")
        self.rules.append(f"{text}sid:{self.sid}; rev:1;)")
        return port

    def send(self, packet, to_server=True, step_us=STEP_US):
        """Sends a packet of IP."""
        macs = ["02:00:00:00:00:01", "02:00:00:00:00:02"]
        source, destination = macs if to_server else macs[::-1]
        if IP in packet and packet[IP].id == 1 and packet[IP].frag == 0 and packet[IP].flags != "MF":
            # Each packet gets an identification of its own, as from a real host.
            self.identification += 1
            packet[IP].id = self.identification
        self.frames.append((self.now_us, bytes(Ether(src=source, dst=destination) / packet)))
        self.now_us += step_us

    def udp(self, port, *payloads, client_port=None, to_server=True):
        """Sends datagrams, each of a flow of its own."""
        for payload in payloads:
            self.flow = getattr(self, "flow", 20_000) + 1
            client = client_port or self.flow
            ports = dict(sport=client, dport=port) if to_server else dict(sport=port, dport=client)
            ends = (CLIENT, SERVER) if to_server else (SERVER, CLIENT)
            self.send(IP(src=ends[0], dst=ends[1]) / UDP(**ports) / Raw(payload), to_server)

    def by_udp(self, options, *payloads):
        """A rule about datagrams, and datagrams."""
        self.udp(self.rule("udp any any -> any $PORT", options), *payloads)

    def by_tcp(self, options, *sayings, protocol="tcp", action="alert"):
        """A rule about a protocol over TCP, and connections of which each says what it says, the client first."""
        port = self.rule(
            f"{protocol} any any -> any $PORT" if "to_client" not in options else f"{protocol} any $PORT -> any any",
            options,
            action,
        )
        for saying in sayings:
            connection = Connection(self, port)
            connection.open()
            for turn, bytes_ in enumerate(saying):
                if bytes_:
                    connection.say(bytes_, turn % 2 == 0)
            connection.close()

    def write(self, folder):
        """Writes both files."""
        if self.rules:
            with open(os.path.join(folder, f"{self.name}.rules"), "w", encoding="utf-8") as file:
                file.write(
                    "# Made by benches/peers/suricata/corpus.py.\n" + "".join(rule + "\n" for rule in self.rules)
                )
        captured = io.BytesIO()
        captured.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1))
        for at_us, frame in self.frames:
            captured.write(struct.pack("<IIII", *divmod(at_us, 1_000_000), len(frame), len(frame)) + frame)
        # The file contains neither name nor time, so that the same corpus always gives the same bytes.
        with open(os.path.join(folder, f"{self.name}.pcap.gz"), "wb") as file:
            with gzip.GzipFile("", "wb", 9, file, 0) as packed:
                packed.write(captured.getvalue())


class Connection:
    """A connection of TCP from a client port of its own."""

    ports = 30_000

    def __init__(self, part, port, step_us=STEP_US, six=False):
        Connection.ports += 1
        self.part, self.step_us = part, step_us
        self.ports = [Connection.ports, port]
        self.next = [1000 * Connection.ports % 2**32, 7_000_000 + Connection.ports]
        self.ends = [CLIENT6, SERVER6] if six else [CLIENT, SERVER]

    def segment(self, to_server, flags, payload=b"", sequence=None, **more):
        """Sends a segment, by default of the bytes that come next."""
        here, there = (0, 1) if to_server else (1, 0)
        begin = self.next[here] if sequence is None else sequence
        acknowledged = self.next[there] if "A" in flags else 0
        header = TCP(
            sport=self.ports[here],
            dport=self.ports[there],
            flags=flags,
            seq=begin,
            ack=acknowledged,
            window=65_000,
            **more,
        )
        layer = IPv6 if ":" in self.ends[0] else IP
        packet = layer(src=self.ends[here], dst=self.ends[there]) / header
        self.part.send(packet / Raw(payload) if payload else packet, to_server, self.step_us)
        if sequence is None:
            self.next[here] = (begin + len(payload) + ("S" in flags or "F" in flags)) % 2**32

    def open(self):
        self.segment(True, "S")
        self.segment(False, "SA")
        self.segment(True, "A")

    def say(self, payload, to_server=True, parts=1):
        """Says something in so many segments, which the other side acknowledges."""
        size = -(-len(payload) // parts)
        for begin in range(0, len(payload), size):
            self.segment(to_server, "PA", payload[begin : begin + size])
            self.segment(not to_server, "A")

    def close(self):
        self.segment(True, "FA")
        self.segment(False, "FA")
        self.segment(True, "A")


def contents():
    part = Part("contents", 1_000_000)
    by = part.by_udp
    by('content:"needle"', b"a needle here", b"a Needle here", b"needl e", b"needleneedle")
    by('content:"NeedLe"; nocase', b"a needle here", b"NEEDLE", b"needl")
    by('content:"|00 01|ab|ff|"', b"x\x00\x01ab\xff", b"\x00\x01ab")
    by(r'content:"a\;b\"c\:d\\e"', b'a;b"c:d\\e', b"a;bc:de")
    by('content:"abc"; offset:3', b"abcdef", b"xxxabc", b"xxabc", b"abcxabc")
    by('content:"abc"; depth:5', b"xxabc", b"xxxabc", b"abc")
    by('content:"abc"; offset:2; depth:4', b"xxabc", b"xxxabc", b"xxxxabc", b"xabc")
    by('content:"ab"; content:"cd"; distance:2', b"abxxcd", b"abxcd", b"abcdabxxxcd", b"cdab")
    by('content:"ab"; content:"cd"; within:4', b"abcd", b"abxxcd", b"abxxxcd", b"abxxxabcd")
    by('content:"ab"; content:"cd"; distance:1; within:3', b"abxcd", b"abcd", b"abxxcd", b"abxxxcd")
    by('content:"cd"; content:"ab"; distance:-4', b"abcd", b"xxxabxcd", b"abxxxcd", b"cdab")
    by('content:"cd"; content:"ab"; distance:-4; within:3', b"abcd", b"abxcd", b"abxxxcd", b"cdab")
    by('content:"need"; content:!"less"', b"need it", b"needless", b"less need")
    by('content:"need"; content:!"less"; within:4', b"needless", b"need less", b"needful, less")
    by('content:"need"; content:!"less"; distance:2', b"needless", b"needxxless", b"need")
    by('content:!"abc"; offset:2; depth:3; content:"z"', b"xxabcz", b"abcxxz", b"xxxabcz", b"zz")
    by('content:"first"; content:"second"; fast_pattern', b"second first", b"second", b"first")
    by('content:"onlyfast"; fast_pattern:only', b"an onlyfast one", b"only fast")
    by('content:"chopped pattern"; fast_pattern:2,5', b"a chopped pattern", b"opped")
    by('content:"GET"; startswith', b"GET it", b" GET it", b"get it")
    by('content:"end"; endswith', b"the end", b"the end.", b"end")
    by('content:"whole"; startswith; endswith', b"whole", b"whole whole", b"the whole")
    by('content:"end"; offset:4; endswith', b"the end", b"the  end", b"end")
    by('content:"raw"; rawbytes', b"raw", b"war")
    by(
        'content:"a"; content:"b"; within:1; content:"c"; within:1; content:"d"; within:1',
        b"ababcabcd",
        b"abcabd",
        b"abcd",
    )
    by('content:"Ab"; nocase; content:"cD"; distance:0; nocase', b"aBxxCd", b"cdab")
    by('content:"one"; offset:0; content:"two"; offset:10', b"one       two", b"one two", b"xxonexxxxxxxxtwo")
    by('content:"aaa"; content:"aaa"; distance:0', b"aaaaaa", b"aaaaa")
    by('content:"aa"; content:"aa"; distance:-1', b"aaa", b"aa")
    by("isdataat:9", b"0123456789", b"012345678", b"")
    by('content:"k"; isdataat:!5', b"k1234", b"k12345")
    by('content:"k="; isdataat:3,relative', b"k=1234", b"k=12", b"k=123")
    by('content:"k="; isdataat:!1,relative', b"k=", b"k=1", b"xk=")
    by('content:"k="; isdataat:!1,relative,rawbytes', b"k=", b"k=1")
    by("dsize:4", b"1234", b"123", b"12345")
    by("dsize:>4", b"1234", b"12345")
    by("dsize:<4", b"123", b"1234")
    by("dsize:3<>6", b"123", b"1234", b"12345", b"123456")
    by("dsize:!4", b"1234", b"123")
    by('pkt_data; content:"packet"; depth:6', b"packet", b"a packet")
    by(
        'content:"x"; msg:"all that people read"; classtype:misc-activity; priority:3; reference:url,example.org; metadata:k v, l w; gid:1; target:src_ip',
        b"x",
        b"y",
    )
    by('msg:"nothing is asked"', b"anything", b"1")
    by('content:"ab"; content:!"cd"; distance:0; within:4', b"abcd", b"abxcd", b"abxxxcd", b"cdab")
    return part


def expressions():
    part = Part("expressions", 2_000_000)
    by = part.by_udp
    by(r'pcre:"/a[0-9]+b/"', b"xa12b", b"xab", b"A1B")
    by(r'pcre:"/a[0-9]+b/i"', b"xA12B", b"xAB")
    by(r'pcre:"/a.b/s"', b"a\nb", b"axb", b"ab")
    by(r'pcre:"/a.b/"', b"a\nb", b"axb")
    by(r'pcre:"/^line/m"', b"one\nline", b"one line", b"line")
    by(r'pcre:"/^line/"', b"one\nline", b"line")
    by(r'pcre:"/end$/"', b"the end", b"the end\n", b"end.", b"end\n\n")
    by(r'pcre:"/end$/E"', b"the end", b"the end\n")
    by(r'pcre:"/end$/m"', b"end\nof", b"end of")
    by(r'pcre:"/a b  c/x"', b"abc", b"a b  c")
    by(r'pcre:"/abc/A"', b"abcd", b"xabc")
    by(r'pcre:"/(ab)+?c/G"', b"ababc", b"ab")
    by(r'content:"key="; pcre:"/^[0-9]{4}/R"', b"key=1234", b"key=12", b"1234key=")
    by(r'content:"key="; pcre:"/[0-9]{4}/R"', b"key=xx1234", b"1234key=xx")
    by(
        r'pcre:"/key=/"; content:"value"; distance:1; within:7',
        b"key=value",
        b"key= value",
        b"key=   value",
        b"value key=",
    )
    by(r'content:"x"; pcre:!"/y[0-9]/"', b"x y1", b"x y", b"y2")
    by(r'pcre:"/(a|b)\1/"', b"aa", b"ab", b"bb")
    by(r'pcre:"/a(?=b)/"', b"ab", b"ac")
    by(r'pcre:"/(?<!x)abc/"', b"abc", b"xabc", b"xabcabc")
    by(r'pcre:"/\x00\xff\d/"', b"\x00\xff1", b"\x00\xffa")
    by(r'pcre:"/[^a-z]{3}/"', b"abc123", b"abc12")
    by(r'pcre:"/a\/b/"', b"a/b", b"ab")
    by(r'pcre:"/one/B"', b"one", b"two")
    by(r'pcre:"/\bword\b/"', b"a word.", b"swords")
    by(r'pcre:"/a{2,3}b/"', b"aab", b"ab", b"aaaab")
    by(r'content:"a"; pcre:"/^b/R"; content:"c"; distance:0', b"abc", b"a b c", b"xabxc", b"aabc")
    return part


def numbers():
    part = Part("numbers", 3_000_000)
    by = part.by_udp
    be = lambda value, width=2: value.to_bytes(width, "big")
    le = lambda value, width=2: value.to_bytes(width, "little")
    by("byte_test:2,>,1000,0", be(1001), be(1000), be(7), b"\xff")
    by("byte_test:2,<,1000,1", b"x" + be(999), b"x" + be(1000), b"x")
    by("byte_test:4,=,70000,0", be(70000, 4), be(7, 4))
    by("byte_test:2,<=,5,0", be(5), be(6))
    by("byte_test:2,>=,5,0", be(5), be(4))
    by("byte_test:2,!=,5,0", be(5), be(4))
    by("byte_test:1,!<,5,0", b"\x05", b"\x04")
    by("byte_test:1,&,0x12,0", b"\x12", b"\x10", b"\x20", b"\x02")
    by("byte_test:1,!&,0x10,0", b"\x10", b"\x20", b"\x31")
    by("byte_test:1,^,0x12,0", b"\x12", b"\x10", b"\x00")
    by("byte_test:2,>,1000,0,little", le(1001), le(1000), be(1001))
    by("byte_test:2,>,1000,0,big", be(1001), be(1000))
    by('content:"n="; byte_test:2,>,1000,0,relative', b"n=" + be(1001), b"n=" + be(1000), be(1001) + b"n=")
    by('content:"n="; byte_test:2,=,7,-4,relative', be(7) + b"n=", be(8) + b"n=")
    by("byte_test:4,>,1000,0,string,dec", b"1001", b"1000", b"99x9", b"  99")
    by("byte_test:4,=,0x1a,0,string,hex", b"001a", b"1a  ", b"001b", b"0x1a")
    by("byte_test:3,=,8,0,string,oct", b"010", b"008", b"10 ")
    by("byte_test:2,=,0x3,0,bitmask 0x0f00", be(0x0345), be(0x0445), be(0xF3FF))
    by("byte_test:8,>,5,0", be(6, 8), be(5, 8), be(2**63 + 1, 8))
    by('byte_jump:1,0; content:"end"; within:3', b"\x02xxend", b"\x03xxend", b"\x00end", b"\x09end")
    by('byte_jump:2,0,little; content:"end"; distance:0; within:3', le(1) + b"xend", le(2) + b"xend")
    by('content:"L"; byte_jump:1,0,relative; content:"end"; within:3', b"xxL\x02xxend", b"L\x01xxend")
    by('byte_jump:1,0,multiplier 3; content:"end"; within:3', b"\x02xxxxxxend", b"\x02xxend")
    by(
        'byte_jump:1,0,align; content:"end"; within:3',
        b"\x02xxxxend",
        b"\x04xxxxend",
        b"\x02xxend",
        b"\x03xxxend",
        b"\x01xxxend",
    )
    by(
        'content:"zz"; byte_jump:1,2,from_beginning; content:"end"; within:3',
        b"zz\x05xxend",
        b"zz\x02xxend",
        b"zz\x06xxxend",
    )
    by('byte_jump:1,0,from_end,post_offset -4; content:"end"; within:3', b"\x00xxxend.", b"\x01xxxend.", b"\x01xxxend")
    by('byte_jump:1,0,post_offset 2; content:"end"; within:3', b"\x01xxxend", b"\x01xend")
    by('byte_jump:2,0,string,dec; content:"end"; within:3', b"04xxxxend", b"03xxxxend", b"xxend")
    by("byte_jump:1,0; isdataat:!1,relative", b"\x02xx", b"\x02xxx", b"\x03xx")
    by('byte_extract:1,0,size; content:"end"; offset:size', b"\x04xxxend", b"\x05xxxend", b"\x02xend")
    by('byte_extract:1,0,size; content:"end"; depth:size', b"\x04end", b"\x03end", b"\x05xxend")
    by('byte_extract:1,0,size; content:"a"; content:"b"; distance:size', b"\x02axxb", b"\x03axxb", b"\x01axxb")
    by('byte_extract:1,0,size; content:"a"; content:"b"; within:size', b"\x02axb", b"\x02axxb", b"\x03axxb")
    by("byte_extract:1,0,size; byte_test:1,>,size,1", b"\x02\x03", b"\x02\x02")
    by("byte_extract:1,0,size; byte_test:1,=,9,size", b"\x02\x01\x09", b"\x01\x01\x09")
    by("byte_extract:1,0,size; isdataat:size", b"\x02xx", b"\x03xx")
    by(
        'content:"k"; byte_extract:1,0,size,relative,multiplier 2; byte_test:1,=,size,0,relative',
        b"k\x02\x04",
        b"k\x02\x02",
        b"\x02\x04k\x02\x02",
    )
    by("byte_extract:2,0,size,string,dec; byte_test:1,=,size,2", b"12\x0c", b"12\x0d")
    by("byte_extract:2,0,size,little; byte_test:1,=,size,2", b"\x05\x00\x05", b"\x00\x05\x05")
    by("byte_extract:1,0,size,align 4; byte_test:1,=,size,1", b"\x05\x08", b"\x05\x05", b"\x04\x04")
    by("byte_math:bytes 1,offset 0,oper +,rvalue 3,result sum; byte_test:1,=,sum,1", b"\x02\x05", b"\x02\x02")
    by("byte_math:bytes 1,offset 0,oper -,rvalue 3,result sum; byte_test:1,=,sum,1", b"\x05\x02", b"\x05\x05")
    by("byte_math:bytes 1,offset 0,oper *,rvalue 3,result sum; byte_test:1,=,sum,1", b"\x02\x06", b"\x02\x02")
    by("byte_math:bytes 1,offset 0,oper /,rvalue 3,result sum; byte_test:1,=,sum,1", b"\x07\x02", b"\x07\x07")
    by("byte_math:bytes 1,offset 0,oper <<,rvalue 2,result sum; byte_test:1,=,sum,1", b"\x01\x04", b"\x01\x01")
    by("byte_math:bytes 1,offset 0,oper >>,rvalue 1,result sum; byte_test:1,=,sum,1", b"\x08\x04", b"\x08\x08")
    by(
        'content:"k"; byte_math:bytes 2,offset 0,oper +,rvalue 1,result sum,relative,endian little; byte_test:1,=,sum,2,relative',
        b"k\x04\x00\x05",
        b"k\x00\x04\x05",
    )
    by("byte_math:bytes 2,offset 0,oper +,rvalue 1,result sum,string dec; byte_test:1,=,sum,2", b"12\x0d", b"12\x0c")
    by(
        "byte_math:bytes 1,offset 0,oper +,rvalue 0,result sum,bitmask 0xf0; byte_test:1,=,sum,1",
        b"\x35\x03",
        b"\x35\x35",
    )
    by(
        "byte_extract:1,0,one; byte_math:bytes 1,offset 1,oper +,rvalue one,result sum; byte_test:1,=,sum,2",
        b"\x02\x03\x05",
        b"\x02\x03\x03",
    )
    by('base64_decode; base64_data; content:"secret"', b"c2VjcmV0", b"c2VjcmV1", b"secret")
    by(
        'content:"b="; base64_decode:bytes 8,offset 1,relative; base64_data; content:"secret"; depth:6',
        b"b=xc2VjcmV0",
        b"b=c2VjcmV0",
        b"c2VjcmV0b=",
    )
    by('base64_decode:bytes 12; base64_data; content:"se"; startswith', b"c2VjcmV0IHRoaW5n", b"xc2VjcmV0")
    by('base64_decode; base64_data; pcre:"/^sec.et$/"', b"c2VjcmV0", b"c2VjcmV0eA==")
    return part


def headers():
    part = Part("headers", 4_000_000)

    def by(options, *packets):
        port = part.rule("udp any any -> any $PORT", options)
        for fields in packets:
            part.flow = getattr(part, "flow", 20_000) + 1
            part.send(IP(src=CLIENT, dst=SERVER, **fields) / UDP(sport=part.flow, dport=port) / Raw(b"headers"))

    by("ttl:3", dict(ttl=3), dict(ttl=4))
    by("ttl:<3", dict(ttl=2), dict(ttl=3))
    by("ttl:>3", dict(ttl=3), dict(ttl=4))
    by("ttl:3-5", dict(ttl=2), dict(ttl=3), dict(ttl=5), dict(ttl=6))
    by("tos:8", dict(tos=8), dict(tos=0))
    by("tos:!8", dict(tos=8), dict(tos=0))
    by("id:4660", dict(id=4660), dict(id=4661))
    by("fragbits:D", dict(flags="DF"), dict())
    by("fragbits:!D", dict(flags="DF"), dict())
    by("fragbits:+D", dict(flags="DF"), dict())
    by("fragbits:*DR", dict(flags="DF"), dict(), dict(flags="evil"))
    by("fragoffset:0", dict(), dict(flags="DF"))
    by(
        "ipopts:rr",
        dict(options=[IPOption(b"\x07\x07\x04\x00\x00\x00\x00")]),
        dict(),
        dict(options=[IPOption(b"\x83\x07\x04\x0a\x00\x00\x01")]),
    )
    by("ipopts:lsrr", dict(options=[IPOption(b"\x83\x07\x04\x0a\x00\x00\x01")]), dict())
    by("ipopts:any", dict(options=[IPOption(b"\x07\x07\x04\x00\x00\x00\x00")]), dict())
    # Rules on `ip_proto` apply to all IP packets, so each rule has a sender of its own. The protocol numbers are not
    # those of tunnels, which Suricata would decode.
    for number, (test, protocols) in enumerate(
        [("253", [253, 254]), ("!254", [253, 254]), (">253", [253, 254]), ("esp", [50, 254])]
    ):
        source = f"10.4.0.{number + 1}"
        part.rule(f"ip {source} any -> any any", f"ip_proto:{test}")
        for protocol in protocols:
            part.send(IP(src=source, dst=SERVER, proto=protocol) / Raw(bytes(20)))
    port = part.rule("udp any any -> any $PORT", "sameip")
    part.send(IP(src=CLIENT, dst=CLIENT) / UDP(sport=9, dport=port) / Raw(b"same"))
    part.send(IP(src=CLIENT, dst=SERVER) / UDP(sport=9, dport=port) / Raw(b"same"))

    def by_flags(options, *segments):
        port = part.rule("tcp any any -> any $PORT", options)
        for fields in segments:
            part.flow += 1
            part.send(
                IP(src=CLIENT, dst=SERVER)
                / TCP(**{"sport": part.flow, "dport": port, "flags": "S", "seq": part.flow, **fields})
            )

    by_flags("flags:S", {}, dict(flags="SA"), dict(flags="SP"))
    by_flags("flags:S+", {}, dict(flags="SP"), dict(flags="A"))
    by_flags("flags:+SF", {}, dict(flags="SF"), dict(flags="SFP"))
    by_flags("flags:*SF", {}, dict(flags="F"), dict(flags="A"))
    part.by_tcp("flags:!S", (b"question", b"answer"))
    part.by_tcp("flags:A+", (b"question", b"answer"))
    by_flags("flags:S,CE", {}, dict(flags="SEC"), dict(flags="SA"))
    by_flags("flags:S,12", {}, dict(flags="SEC"), dict(flags="SA"))
    by_flags("tcp.flags:FPU", {}, dict(flags="FPU"))
    by_flags("flags:0", {}, dict(flags=0))
    by_flags("seq:1234567", {}, dict(seq=1234567))
    by_flags("ack:7654321", dict(ack=7654321), dict(ack=1), dict(flags="A", ack=7654321))
    by_flags("window:12345", dict(window=12345), {})
    by_flags("window:!12345", dict(window=12345), {})
    return part


def icmp():
    part = Part("icmp", 5_000_000)
    turn = [0]

    def by(options, *packets, six=False):
        # ICMP has no ports, so each rule has a sender of its own.
        turn[0] += 1
        source = f"2001:db8:1::{turn[0]:x}" if six else f"10.3.0.{turn[0]}"
        part.rule(f"icmp {source} any -> any any", options)
        for packet in packets:
            header = IPv6(src=source, dst=SERVER6) if six else IP(src=source, dst=SERVER)
            part.send(header / packet / Raw(b"abcdefgh"))

    by("itype:8", ICMP(type=8), ICMP(type=13, ts_ori=1, ts_rx=1, ts_tx=1))
    by("itype:>8", ICMP(type=8), ICMP(type=13, ts_ori=1, ts_rx=1, ts_tx=1))
    by("itype:<9", ICMP(type=8), ICMP(type=13, ts_ori=1, ts_rx=1, ts_tx=1))
    by(
        "itype:8<>14",
        ICMP(type=8),
        ICMP(type=13, ts_ori=1, ts_rx=1, ts_tx=1),
        ICMP(type=14, ts_ori=1, ts_rx=1, ts_tx=1),
    )
    by("icode:3", ICMP(type=3, code=3), ICMP(type=3, code=1))
    by("icode:>1", ICMP(type=3, code=3), ICMP(type=3, code=1))
    by("itype:8; icode:0", ICMP(type=8), ICMP(type=8, code=1))
    by("icmp_id:4660", ICMP(type=8, id=4660), ICMP(type=8, id=1))
    by("icmp_seq:22136", ICMP(type=8, seq=22136), ICMP(type=8, seq=1))
    by('content:"cde"; offset:2; depth:3', ICMP(type=8), ICMP(type=0))
    by("dsize:8", ICMP(type=8), ICMP(type=8) / Raw(b"1"))
    by("itype:128", ICMPv6EchoRequest(data=b"1"), ICMPv6EchoReply(data=b"1"), six=True)
    by("icmp_id:77", ICMPv6EchoRequest(id=77), ICMPv6EchoRequest(id=78), six=True)
    by("icmp_seq:77", ICMPv6EchoRequest(seq=77), ICMPv6EchoRequest(seq=78), six=True)
    by("ttl:9; itype:128", ICMPv6EchoRequest(id=1), six=True)
    return part


def sides():
    part = Part("sides", 6_000_000)

    def by(header, *packets, options=""):
        port = part.rule(header, options)
        for source, sport, destination, dport in packets:
            layer = IPv6 if ":" in source else IP
            number = lambda text: port if text == "$PORT" else text
            part.send(
                layer(src=source, dst=destination) / UDP(sport=number(sport), dport=number(dport)) / Raw(b"sides")
            )

    a, b, c, d = "10.1.0.1", "10.1.0.2", "10.2.0.1", "192.0.2.9"
    by("udp 10.1.0.1 any -> any $PORT", (a, 1, c, "$PORT"), (b, 1, c, "$PORT"))
    by("udp 10.1.0.0/30 any -> any $PORT", (a, 2, c, "$PORT"), (d, 2, c, "$PORT"))
    by("udp !10.1.0.1 any -> any $PORT", (a, 3, c, "$PORT"), (b, 3, c, "$PORT"))
    by("udp [10.1.0.1,192.0.2.0/24] any -> any $PORT", (a, 4, c, "$PORT"), (b, 4, c, "$PORT"), (d, 4, c, "$PORT"))
    by("udp [10.1.0.0/16,!10.1.0.2] any -> any $PORT", (a, 5, c, "$PORT"), (b, 5, c, "$PORT"), (d, 5, c, "$PORT"))
    by("udp any any -> [10.2.0.0/16,192.0.2.9] $PORT", (a, 6, c, "$PORT"), (a, 6, d, "$PORT"), (a, 6, b, "$PORT"))
    by("udp $HOME_NET any -> $EXTERNAL_NET $PORT", (a, 7, d, "$PORT"), (d, 7, a, "$PORT"), (a, 7, c, "$PORT"))
    by(
        "udp any [1000,2000:2010,!2005] -> any $PORT",
        (a, 1000, c, "$PORT"),
        (a, 2000, c, "$PORT"),
        (a, 2005, c, "$PORT"),
        (a, 2011, c, "$PORT"),
    )
    by("udp any !1000 -> any $PORT", (a, 1000, c, "$PORT"), (a, 1001, c, "$PORT"))
    by("udp any 60000: -> any $PORT", (a, 60000, c, "$PORT"), (a, 59999, c, "$PORT"))
    by("udp any :99 -> any $PORT", (a, 99, c, "$PORT"), (a, 100, c, "$PORT"))
    by("udp any $PORT -> any any", (a, "$PORT", c, 8), (a, 8, c, "$PORT"))
    by("udp 10.1.0.1 any <> 10.2.0.1 $PORT", (a, 9, c, "$PORT"), (c, "$PORT", a, 9), (b, 9, c, "$PORT"))
    by(
        "udp 2001:db8:1::/48 any -> any $PORT",
        (CLIENT6, 10, SERVER6, "$PORT"),
        (SERVER6, 10, CLIENT6, "$PORT"),
        (a, 10, c, "$PORT"),
    )
    by("udp !2001:db8:1::1 any -> any $PORT", (CLIENT6, 11, SERVER6, "$PORT"), (SERVER6, 11, CLIENT6, "$PORT"))
    return part


def flows():
    part = Part("flows", 7_000_000)
    ask, answer = b"a question", b"an answer"
    by = part.by_tcp
    by('flow:to_server; content:"question"', (ask, answer), (answer, ask))
    by('flow:to_client; content:"answer"', (ask, answer), (answer, ask))
    by('flow:from_client; content:"question"', (ask, answer))
    by('flow:established; content:"question"', (ask, answer))
    by('flow:established,to_server; content:"question"', (ask, answer), (answer, ask))
    by('flow:stateless; content:"question"', (ask, answer))
    by('flow:to_server,no_stream; content:"question"', (ask, answer))
    by('flow:to_server,only_stream; content:"question"', (ask, answer))
    by("flow:not_established; flags:S", (ask, answer))
    # These segments belong to no connection: there was no handshake.
    port = part.rule("tcp any any -> any $PORT", 'flow:established; content:"question"')
    Connection(part, port).segment(True, "PA", ask)
    port = part.rule("tcp any any -> any $PORT", 'content:"question"')
    Connection(part, port).segment(True, "PA", ask)
    port = part.rule("tcp any any -> any $PORT", 'flow:stateless; content:"question"')
    Connection(part, port).segment(True, "PA", ask)
    port = part.rule("tcp any any -> any $PORT", 'flow:not_established; content:"question"')
    Connection(part, port).segment(True, "PA", ask)

    def datagrams(options, *said, reverse=False):
        port = part.rule("udp any $PORT -> any any" if reverse else "udp any any -> any $PORT", options)
        for saying in said:
            part.flow = getattr(part, "flow", 20_000) + 1
            for turn, bytes_ in enumerate(saying):
                if bytes_:
                    part.udp(port, bytes_, client_port=part.flow, to_server=turn % 2 == 0)

    datagrams('flow:to_server; content:"question"', (ask, answer))
    datagrams('flow:to_client; content:"answer"', (ask, answer), reverse=True)
    datagrams('flow:established,to_server; content:"question"', (ask, answer, ask))
    datagrams('flow:not_established,to_server; content:"question"', (ask, answer, ask))

    # Flow bits: one rule sets a bit, another rule tests the bit.
    def bits(rules, *said):
        port = part.rule("udp any any -> any $PORT", rules[0])
        for options in rules[1:]:
            part.rule(f"udp any any -> any {port}", options)
        for saying in said:
            part.flow += 1
            for bytes_ in saying:
                part.udp(port, bytes_, client_port=part.flow)

    bits(
        ['content:"login"; flowbits:set,in', 'content:"get"; flowbits:isset,in'], (b"get", b"login", b"get"), (b"get",)
    )
    bits(
        ['content:"login"; flowbits:set,quiet; flowbits:noalert', 'content:"get"; flowbits:isset,quiet'],
        (b"login", b"get"),
    )
    bits(['content:"login"; flowbits:set,silent; noalert', 'content:"get"; flowbits:isset,silent'], (b"login", b"get"))
    bits(['content:"login"; flowbits:set,not', 'content:"get"; flowbits:isnotset,not'], (b"get", b"login", b"get"))
    bits(
        ['content:"login"; flowbits:set,un', 'content:"logout"; flowbits:unset,un', 'content:"get"; flowbits:isset,un'],
        (b"login", b"get", b"logout", b"get"),
    )
    bits(
        ['content:"flip"; flowbits:toggle,flip', 'content:"get"; flowbits:isset,flip'],
        (b"flip", b"get", b"flip", b"get"),
    )
    bits(
        ['content:"one"; flowbits:set,a1', 'content:"two"; flowbits:set,a2', 'content:"get"; flowbits:isset,a1|a2'],
        (b"get",),
        (b"one", b"get"),
        (b"two", b"get"),
    )
    # Both rules match in one packet, so the order of their evaluation matters.
    bits(['content:"both"; flowbits:set,same', 'content:"both"; flowbits:isset,same'], (b"both", b"both"))
    bits(['content:"both"; flowbits:isset,later', 'content:"both"; flowbits:set,later'], (b"both", b"both"))
    return part


def rates():
    part = Part("rates", 8_000_000)

    def by(options, *packets):
        port = part.rule("udp any any -> any $PORT", options)
        for source, destination, wait_us in packets:
            part.flow = getattr(part, "flow", 20_000) + 1
            part.send(IP(src=source, dst=destination) / UDP(sport=part.flow, dport=port) / Raw(b"often"), True, wait_us)

    a, b, c = "10.1.0.1", "10.1.0.2", "10.2.0.1"
    many = [(a, c, 1000)] * 7
    late = many[:4] + [(a, c, 5_000_000)] + many[:4]
    mixed = [(a, c, 1000), (b, c, 1000)] * 4
    for kind in ["limit", "threshold", "both"]:
        for track in ["by_src", "by_dst", "by_both", "by_rule"]:
            by(f"threshold:type {kind},track {track},count 3,seconds 60", *mixed)
        by(f"threshold:type {kind},track by_src,count 3,seconds 2", *late)
        by(f"threshold:type {kind},track by_src,count 1,seconds 60", *many)
    by("detection_filter:track by_src,count 3,seconds 60", *many)
    by("detection_filter:track by_src,count 3,seconds 60", *mixed)
    by("detection_filter:track by_dst,count 3,seconds 60", *mixed)
    by("detection_filter:track by_src,count 3,seconds 2", *late)
    by('content:"often"; threshold:type limit,track by_src,count 2,seconds 60', *many)
    return part


def request(line="GET / HTTP/1.1", body=b"", **fields):
    names = {"host": "www.example.net", **fields}
    lines = "".join(f"{name.replace('_', '-').title()}: {value}\r\n" for name, value in names.items())
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{line}\r\n{lines}{length}\r\n".encode("latin-1") + body


def response(body=b"hello", line="HTTP/1.1 200 OK", **fields):
    lines = "".join(f"{name.replace('_', '-').title()}: {value}\r\n" for name, value in fields.items())
    return f"{line}\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def http():
    part = Part("http", 9_000_000)
    plain = response()

    def by(options, *requests):
        """Each is a request, or a request and its response."""
        pairs = [it if isinstance(it, tuple) else (it, plain) for it in requests]
        part.by_tcp(options, *pairs, protocol="http")

    get = lambda path: request(f"GET {path} HTTP/1.1")
    by('flow:to_server; http.method; content:"POST"', request("POST / HTTP/1.1", b"x=1"), get("/"))
    by('flow:to_server; content:"POST"; http_method', request("POST / HTTP/1.1", b"x=1"), get("/POST"))
    by(
        'flow:to_server; http.uri; content:"/secret"',
        get("/a/secret"),
        get("/a/se%63ret"),
        get("/a/x/../secret"),
        get("/"),
    )
    by('flow:to_server; content:"/secret"; http_uri', get("/a/secret"), get("/a/se%63ret"))
    by('flow:to_server; uricontent:"/secret"', get("/a/secret"), get("/"))
    by('flow:to_server; http.uri.raw; content:"se%63ret"', get("/se%63ret"), get("/secret"))
    by('flow:to_server; content:"se%63ret"; http_raw_uri', get("/se%63ret"), get("/secret"))
    by('flow:to_server; http.uri; content:"a b"', get("/a%20b"), get("/a+b"))
    by('flow:to_server; http.uri; content:"?q=1"', get("/s?q=1"), get("/q=1"))
    by("flow:to_server; http.uri; bsize:9", get("/12345678"), get("/1234567"))
    by("flow:to_server; urilen:9", get("/12345678"), get("/1234567"))
    by("flow:to_server; urilen:>9", get("/123456789"), get("/12345678"))
    by("flow:to_server; urilen:<9", get("/1234567"), get("/12345678"))
    by("flow:to_server; urilen:5<>9", get("/1234"), get("/12345"), get("/1234567"), get("/12345678"))
    by("flow:to_server; urilen:4,norm", get("/%61%62c"), get("/abcd"))
    by("flow:to_server; urilen:8,raw", get("/%61%62c"), get("/1234567"))
    by('flow:to_server; http.protocol; content:"HTTP/1.0"', request("GET / HTTP/1.0"), get("/"))
    by('flow:to_server; http.request_line; content:"GET /line HTTP/1.1"', get("/line"), get("/lines"))
    by(
        'flow:to_client; http.response_line; content:"HTTP/1.1 404 Not Found"',
        (get("/"), response(line="HTTP/1.1 404 Not Found")),
        get("/"),
    )
    by(
        'flow:to_server; http.host; content:"evil.example"',
        request(host="evil.example"),
        request(host="EVIL.example:8080"),
        get("/"),
    )
    by('flow:to_server; content:"evil.example"; http_host', request(host="evil.example"), get("/"))
    by(
        'flow:to_server; http.user_agent; content:"Badger/1"',
        request(user_agent="Badger/1"),
        request(user_agent="Fox"),
        get("/"),
    )
    by('flow:to_server; content:"Badger/1"; http_user_agent', request(user_agent="Badger/1"), get("/"))
    by(
        'flow:to_server; http.user_agent; content:!"Mozilla"',
        request(user_agent="Badger/1"),
        request(user_agent="Mozilla"),
        get("/"),
    )
    by('flow:to_server; http.referer; content:"from.example"', request(referer="http://from.example/"), get("/"))
    by('flow:to_server; http.cookie; content:"id=7"', request(cookie="a=1; id=7"), get("/"))
    by('flow:to_server; content:"id=7"; http_cookie', request(cookie="a=1; id=7"), get("/"))
    by('flow:to_client; http.cookie; content:"id=7"', (get("/"), response(set_cookie="id=7; path=/")), get("/"))
    by('flow:to_server; http.header; content:"X-Odd|3a 20|one"', request(x_odd="one"), request(x_odd="two"))
    by('flow:to_server; content:"X-Odd|3a| one"; http_header', request(x_odd="one"), request(x_odd="two"))
    by('flow:to_client; http.header; content:"X-Odd|3a 20|one|0d 0a|"', (get("/"), response(x_odd="one")), get("/"))
    by('flow:to_server; http.header; content:"Cookie"', request(cookie="id=7"), request(x_cookie="1"))
    by('flow:to_server; http.header.raw; content:"|0d 0a|X-Odd|3a 20|one"', request(x_odd="one"), request(x_odd="two"))
    by('flow:to_server; content:"Odd|3a| one"; http_raw_header', request(x_odd="one"), request(x_odd="two"))
    by(
        'flow:to_server; http.content_type; content:"text/odd"',
        request("POST / HTTP/1.1", b"x", content_type="text/odd"),
        get("/"),
    )
    by('flow:to_client; http.content_type; content:"text/odd"', (get("/"), response(content_type="text/odd")), get("/"))
    by('flow:to_server; http.accept; content:"image/odd"', request(accept="image/odd"), get("/"))
    by(
        'flow:to_server; http.request_body; content:"user=root"',
        request("POST / HTTP/1.1", b"a=1&user=root"),
        request("POST / HTTP/1.1", b"user=me"),
    )
    by(
        'flow:to_server; content:"user=root"; http_client_body',
        request("POST / HTTP/1.1", b"a=1&user=root"),
        get("/user=root"),
    )
    by('flow:to_client; http.response_body; content:"<script>"', (get("/"), response(b"a <script> b")), get("/"))
    by('flow:to_client; content:"<script>"; http_server_body', (get("/"), response(b"a <script> b")), get("/"))
    by(
        'flow:to_client; file_data; content:"<script>"; depth:10',
        (get("/"), response(b"a <script> b")),
        (get("/"), response(b"long in front <script> b")),
    )
    by('flow:to_client; file.data; content:"<script>"', (get("/"), response(b"a <script> b")), get("/"))
    by('flow:to_server; file.data; content:"upload"', request("POST / HTTP/1.1", b"an upload"), get("/upload"))
    by(
        'flow:to_client; http.stat_code; content:"404"',
        (get("/"), response(line="HTTP/1.1 404 Not Found")),
        get("/404"),
    )
    by(
        'flow:to_client; content:"404"; http_stat_code',
        (get("/"), response(line="HTTP/1.1 404 Not Found")),
        get("/404"),
    )
    by(
        'flow:to_client; http.stat_msg; content:"Not Found"',
        (get("/"), response(line="HTTP/1.1 404 Not Found")),
        get("/"),
    )
    by(
        'flow:to_client; content:"Not Found"; http_stat_msg',
        (get("/"), response(line="HTTP/1.1 404 Not Found")),
        get("/"),
    )
    by(
        'flow:to_server; http.method; content:"GET"; http.uri; content:"/two"; http.host; content:"two.example"',
        request("GET /two HTTP/1.1", host="two.example"),
        request("GET /two HTTP/1.1"),
        get("/one"),
    )
    by(r'flow:to_server; pcre:"/\/p[0-9]+$/U"', get("/p12"), get("/p12x"), get("/%7012"))
    by(r'flow:to_server; http.uri; pcre:"/^\/p[0-9]+$/"', get("/p12"), get("/xp12"))
    by(r'flow:to_server; pcre:"/a[0-9]b/P"', request("POST / HTTP/1.1", b"a1b"), get("/a1b"))
    by(r'flow:to_server; pcre:"/Badger.[0-9]/V"', request(user_agent="Badger/1"), get("/Badger/1"))
    by(r'flow:to_server; pcre:"/id=[0-9]/C"', request(cookie="id=7"), get("/id=7"))
    by(r'flow:to_server; pcre:"/odd: one/Hi"', request(x_odd="one"), get("/odd"))
    by(r'flow:to_server; pcre:"/^www\.ex/W"', get("/"), request(host="ww.example"))
    by(r'flow:to_client; pcre:"/^40[0-9]/S"', (get("/"), response(line="HTTP/1.1 404 Not Found")), get("/"))
    by(r'flow:to_client; pcre:"/scr.pt/Q"', (get("/"), response(b"a <script> b")), get("/"))
    by(
        'flow:to_server; http.uri; content:"/n"; content:"k="; distance:0; isdataat:!3,relative',
        get("/n?k=12"),
        get("/n?k=1234"),
    )
    by(
        'flow:to_server; http.uri; content:"/n"; startswith; content:"z"; endswith',
        get("/n-z"),
        get("/m-z"),
        get("/n-za"),
    )
    by('flow:to_server; http.uri; content:"/upper"; nocase', get("/UPPER"), get("/lower"))
    by(
        'flow:to_server; http.host; dotprefix; content:".dot.example"; endswith',
        request(host="dot.example"),
        request(host="a.dot.example"),
        request(host="adot.example"),
    )
    by('flow:to_server,established; content:"GET /payload"', get("/payload"), get("/"))
    by('flow:to_server; content:"GET "; depth:4; http.uri; content:"/mixed"', get("/mixed"), get("/"))
    # The rule has no content options, so only its protocol can match.
    by("flow:to_server", get("/"))
    port = part.rule("tcp any any -> any $PORT", 'app-layer-protocol:http; flow:to_server; content:"GET"')
    for said in [(get("/"), plain), (b"GETTING on", b"OK")]:
        connection = Connection(part, port)
        connection.open()
        connection.say(said[0])
        connection.say(said[1], False)
        connection.close()
    # The first request is split into segments, and the connection carries several requests.
    port = part.rule("http any any -> any $PORT", 'flow:to_server; http.uri; content:"/a/long/path"')
    connection = Connection(part, port)
    connection.open()
    connection.say(get("/a/long/path"), True, 5)
    connection.say(plain, False)
    connection.say(get("/other"))
    connection.say(plain, False)
    connection.say(get("/a/long/path"))
    connection.say(plain, False)
    connection.close()
    port = part.rule("http any $PORT -> any any", 'flow:to_client; file_data; content:"over a cut"')
    connection = Connection(part, port)
    connection.open()
    connection.say(get("/"))
    connection.say(response(b"x" * 100 + b"over a cut" + b"y" * 90), False, 2)
    connection.close()
    return part


def dns():
    part = Part("dns", 10_000_000)
    ports = [40_000]

    def ask(name, to_server=True, tcp=False, kind="A"):
        ports[0] += 1
        query = DNS(id=ports[0], rd=1, qd=DNSQR(qname=name, qtype=kind))
        answer = DNS(
            id=ports[0],
            qr=1,
            rd=1,
            ra=1,
            qd=DNSQR(qname=name, qtype=kind),
            an=DNSRR(rrname=name, ttl=60, rdata="192.0.2.1"),
        )
        if tcp:
            connection = Connection(part, 53)
            connection.open()
            for turn, message in enumerate([query, answer]):
                text = bytes(message)
                connection.say(struct.pack(">H", len(text)) + text, turn == 0)
            connection.close()
            return
        for turn, message in enumerate([query, answer]):
            ends = [CLIENT, SERVER][:: -1 if turn else 1]
            numbers = [ports[0], 53][:: -1 if turn else 1]
            part.send(IP(src=ends[0], dst=ends[1]) / UDP(sport=numbers[0], dport=numbers[1]) / message, not turn)

    part.rule("dns any any -> any any", 'dns.query; content:"plain"')
    part.rule("dns any any -> any any", 'dns_query; content:"older"')
    part.rule("dns any any -> any any", 'dns.query; content:"CaSe"; nocase')
    part.rule("dns any any -> any any", 'dns.query; dotprefix; content:".dot.example"; endswith')
    part.rule("dns any any -> any any", 'dns.query; content:"start"; startswith')
    part.rule("dns any any -> any any", 'dns.query; content:"long"; bsize:>20')
    part.rule("dns any any -> any any", r'dns.query; pcre:"/^[a-z]{2}[0-9]{3}\./"')
    part.rule("udp any any -> any 53", 'content:"|05|bytes|07|example"')
    part.rule("udp any any -> any 53", 'app-layer-protocol:dns; content:"|03|app"')
    part.rule("dns any any -> any any", 'dns.query; content:"not"; content:!"but"')
    part.rule("tcp any any -> any 53", 'dns.query; content:"overtcp"')
    part.rule("dns any any -> any any", 'flow:to_client; content:"|08|answered"')
    for name in [
        "plain.example",
        "explain.example",
        "older.example",
        "case.example",
        "CASE.example",
        "dot.example",
        "a.dot.example",
        "adot.example",
        "start.example",
        "restart.example",
        "long.example",
        "very.very.very.long.example",
        "ab123.example",
        "abc123.example",
        "bytes.example",
        "app.example",
        "not.example",
        "not.but.example",
        "overtcp.example",
        "answered.example",
        "quiet.example",
    ]:
        ask(name)
    for name in ["overtcp.example", "plain.example", "a.dot.example", "quiet.example"]:
        ask(name, tcp=True)
    ask("plain.example", kind="TXT")
    return part


def hello(name, version=0x0303, record_version=0x0301):
    """A client's hello of TLS with a server name."""
    with_len = lambda width, text: len(text).to_bytes(width, "big") + text
    extensions = b"\0\0" + with_len(2, with_len(2, b"\0" + with_len(2, name))) if name else b""
    extensions += b"\0\x0a\0\x04\0\x02\0\x1d"
    body = (
        version.to_bytes(2, "big")
        + bytes(range(32))
        + with_len(1, b"")
        + with_len(2, b"\xc0\x2f\0\x2f")
        + with_len(1, b"\0")
    )
    body += with_len(2, extensions)
    return b"\x16" + record_version.to_bytes(2, "big") + with_len(2, b"\x01" + with_len(3, body))


def server_hello(version=0x0303):
    with_len = lambda width, text: len(text).to_bytes(width, "big") + text
    body = version.to_bytes(2, "big") + bytes(range(32, 64)) + with_len(1, b"") + b"\xc0\x2f\0"
    return b"\x16" + version.to_bytes(2, "big") + with_len(2, b"\x02" + with_len(3, body))


def tls():
    part = Part("tls", 11_000_000)

    def by(options, *said):
        part.by_tcp(options, *said, protocol="tls")

    pair = lambda name, version=0x0303: (hello(name, version), server_hello(version))
    by(
        'flow:to_server; tls.sni; content:"evil.example"',
        pair(b"www.evil.example"),
        pair(b"www.good.example"),
        pair(b""),
    )
    by('flow:to_server; tls_sni; content:"evil.example"', pair(b"evil.example"), pair(b"good.example"))
    by('flow:to_server; tls.sni; content:"EVIL"; nocase', pair(b"www.evil.example"), pair(b"good.example"))
    by(
        'flow:to_server; tls.sni; dotprefix; content:".dot.example"; endswith',
        pair(b"dot.example"),
        pair(b"a.dot.example"),
        pair(b"adot.example"),
    )
    by("flow:to_server; tls.sni; bsize:12", pair(b"123.56789.12"), pair(b"1.example"))
    by('flow:to_server; tls.sni; pcre:"/^[a-z]{3}[0-9]\\./"', pair(b"abc1.example"), pair(b"ab1.example"))
    by("flow:to_server; ssl_state:client_hello", pair(b"a.example"))
    by("flow:to_client; ssl_state:server_hello", pair(b"a.example"))
    by("flow:to_server; ssl_state:!client_hello", pair(b"a.example"))
    by("flow:to_client; tls.version:1.2", pair(b"a.example"), pair(b"a.example", 0x0302))
    by("flow:to_client; ssl_version:tls1.2", pair(b"a.example"), pair(b"a.example", 0x0302))
    by('flow:to_server; content:"a.example"', pair(b"a.example"), pair(b"b.example"))
    by("flow:to_server", pair(b"a.example"))
    port = part.rule("tls any any -> any $PORT", 'flow:to_server; tls.sni; content:"cut.example"')
    connection = Connection(part, port)
    connection.open()
    connection.say(hello(b"www.cut.example"), True, 4)
    connection.say(server_hello(), False)
    connection.close()
    return part


def der(tag, *parts):
    """An element of DER."""
    content = b"".join(parts)
    if len(content) < 0x80:
        length = bytes([len(content)])
    else:
        digits = -(-len(content).bit_length() // 8)
        length = bytes([0x80 | digits]) + len(content).to_bytes(digits, "big")
    return bytes([tag]) + length + content


# Object identifiers of the attributes of names, in DER.
COUNTRY, PLACE, MAKER, NAME, NUMBER = b"\x55\4\6", b"\x55\4\7", b"\x55\4\x0a", b"\x55\4\3", b"\x55\4\5"
MAIL = b"\x2a\x86\x48\x86\xf7\x0d\1\x09\1"


def certificate(subject, issuer, serial=b"\1", together=False):
    """A certificate that nobody has signed, for a subject and by an issuer, which are lists of attributes and values."""

    def name(attributes):
        parts = [der(0x30, der(6, kind), der(0x0C, value)) for kind, value in attributes]
        return der(0x30, der(0x31, *parts)) if together else der(0x30, *[der(0x31, part) for part in parts])

    algorithm = der(0x30, der(6, b"\x2a\x86\x48\x86\xf7\x0d\1\1\x0b"), b"\5\0")
    key = der(0x30, der(0x30, der(6, b"\x2a\x86\x48\x86\xf7\x0d\1\1\1"), b"\5\0"), der(3, b"\0", bytes(140)))
    times = der(0x30, der(0x17, b"240101000000Z"), der(0x17, b"340101000000Z"))
    fields = der(0xA0, b"\2\1\2"), der(2, serial), algorithm, name(issuer), times, name(subject), key
    return der(0x30, der(0x30, *fields), algorithm, der(3, b"\0", bytes(64)))


def record(*messages):
    """A record of TLS with these messages: kinds and what is in them."""
    body = b"".join(bytes([kind]) + len(text).to_bytes(3, "big") + text for kind, text in messages)
    return b"\x16\x03\x03" + len(body).to_bytes(2, "big") + body


def certificate_record(chain):
    with_len = lambda body: len(body).to_bytes(3, "big") + body
    return record((11, with_len(b"".join(with_len(one) for one in chain))), (14, b""))


def certificates():
    part = Part("certificates", 16_000_000)

    def by(options, *chains, parts=1):
        port = part.rule("tls any any -> any any", options)
        for chain in chains:
            connection = Connection(part, port)
            connection.open()
            connection.say(hello(b"a.example"), True)
            connection.say(server_hello() + certificate_record(chain), False, parts)
            connection.say(record((16, b"\0" * 34)), True)
            connection.close()

    maker = [(COUNTRY, b"DE"), (MAKER, b"Some Makers"), (NAME, b"Root")]
    device = certificate([(COUNTRY, b"FR"), (PLACE, b"Paris"), (NAME, b"device.example")], maker, b"\0\xab\x12\xcd")
    other = certificate([(NAME, b"other.example"), (MAIL, b"a@other.example")], [(NAME, b"other.example")], b"\x05")
    odd = certificate([(NAME, b"odd.example"), (NUMBER, b"17")], [(NAME, b"odd")], b"\x7f", together=True)
    root = certificate(maker, maker, b"\x11\x22")
    chains = [device, root], [other], [odd]
    by('tls.cert_subject; content:"CN=device.example"', *chains)
    by('flow:to_client; tls.cert_subject; content:"C=FR, L=Paris, CN=device.example"; startswith; endswith', *chains)
    by('tls.cert_subject; content:"Email=a@other.example"', *chains)
    by('tls_cert_subject; content:"serialNumber=17"', *chains)
    by('tls.cert_subject; content:" + "', *chains)
    by('tls.cert_subject; content:"Root"', *chains)
    by("tls.cert_subject; bsize:34", *chains)
    by('tls.cert_issuer; content:"C=DE, O=Some Makers, CN=Root"; bsize:28', *chains)
    by('tls_cert_issuer; content:"OTHER.example"; nocase', *chains)
    by('tls.cert_subject; content:"example"; tls.cert_issuer; content:"Root"', *chains)
    by('tls.cert_serial; content:"00:AB:12:CD"; bsize:11', *chains)
    by('tls.cert_serial; content:"05"; startswith', *chains)
    by('flow:to_client; tls.certs; content:"|55 04 03 0c 0e|device.example"', *chains)
    by('tls.certs; content:"|30 82|"; startswith; content:"Root"', *chains)
    by('tls.cert_subject; content:"device"', *chains, parts=3)
    by('ja3.hash; content:"%s"' % hashlib.md5(b"771,49199-47,0-10,29,").hexdigest(), [device])
    by('ja3.string; content:"771,49199-47,0-10,29,"; startswith; endswith', [device])
    by('ja3s.hash; content:"%s"' % hashlib.md5(b"771,49199,").hexdigest(), [device])
    by('ja3s.string; content:"771,49199,"; bsize:10', [device])
    # One rule uses buffers that become available at different times.
    by('ja3.string; content:"49199"; tls.sni; content:"a.example"; startswith', [device])
    by('tls.sni; content:"a.example"; ja3.string; content:"771"; startswith', [device])
    by('ja3.string; content:"49199"; tls.sni; content:!"b.example"', [device])
    by('ja3s.string; content:"49199"; tls.cert_subject; content:"device"', [device], parts=3)
    by('tls.cert_issuer; content:"Root"; ja3s.string; content:"771"; startswith', [device], parts=3)
    return part


def hosts():
    part = Part("hosts", 17_000_000)

    def bits(rules, *packets):
        """Rules of which each has a port of its own: packets are sender, receiver, number of the rule, time until the next."""
        ports = [part.rule("udp any any -> any $PORT", options) for options in rules]
        for source, destination, number, wait_us in packets:
            part.flow = getattr(part, "flow", 20_000) + 1
            ports_of = dict(sport=part.flow, dport=ports[number])
            part.send(IP(src=source, dst=destination) / UDP(**ports_of) / Raw(b"any"), True, wait_us)

    a, b, c = "10.1.0.1", "10.1.0.2", "10.2.0.1"
    soon, late = 1000, 5_000_000
    for track, others in [("ip_src", [(a, b), (b, c)]), ("ip_dst", [(a, b), (b, c)]), ("ip_pair", [(c, a), (b, c)])]:
        name = f"seen_{track}"
        by = f"{name},track {track}"
        rules = [f"xbits:set,{by},expire 60", f"xbits:isset,{by}", f"xbits:isnotset,{by}", f"xbits:unset,{by}"]
        asked = [(*ends, number, soon) for ends in [(a, c), *others] for number in (1, 2)]
        bits(rules, *asked, (a, c, 0, soon), *asked, (a, c, 3, soon), *asked)
    short = "short,track ip_src"
    bits(
        [f"xbits:set,{short},expire 2", f"xbits:isset,{short}", f"xbits:toggle,{short},expire 60"],
        *[(a, c, number, wait) for number, wait in [(0, soon), (1, late), (1, soon), (2, soon), (1, soon), (2, soon), (1, soon)]],
    )
    bits(["xbits:set,quiet,track ip_src,expire 60; noalert", "xbits:isset,quiet,track ip_src"], (b, c, 0, soon), (b, c, 1, soon))
    ask, answer = b"0123456789 mark", b"an answer of 25 bytes....."
    sayings = (ask, answer, ask, answer), (ask, None, ask)
    for ends in ["client", "server", "both", "either"]:
        for how in ["<", ">", "=", "!="]:
            for size in [1, 16, 31]:
                part.by_tcp(f'content:"mark"; stream_size:{ends},{how},{size}', *sayings)
    part.by_tcp("flags:S; stream_size:client,=,1", (ask, answer))
    part.by_tcp("flow:to_server; stream_size:server,>,20", (ask, answer, ask))
    greetings = [
        (None, b"220 mail.example ESMTP\r\n", b"EHLO me.example\r\n", b"250 mail.example\r\n", b"MAIL FROM:<mark>\r\n", b"250 ok\r\n"),
        (None, b"220 mail.example ESMTP\r\n", b"helo me.example\r\n", b"250 mail.example\r\n", b"MAIL FROM:<mark>\r\n", b"250 ok\r\n"),
        (None, b"220 files.example\r\n", b"USER me\r\n", b"331 and?\r\n", b"PASS mark\r\n", b"230 in\r\n"),
        (None, b"SSH-2.0-some\r\n", b"SSH-2.0-other\r\n", b"mark mark mark mark", b"mark mark mark mark"),
        (b"\0\0\0\x2f\xfeSMB\x40\0" + bytes(32) + b"mark!", b"\0\0\0\x2f\xfeSMB\x40\0" + bytes(32) + b"mark!"),
        (b"nothing of these, mark", b"as well, mark"),
    ]
    for protocol in ["smtp", "ftp", "ssh", "smb"]:
        part.by_tcp('flow:to_server; content:"mark"', *greetings, protocol=protocol)
    get = request()
    moved = response(line="HTTP/1.1 302 Found", location="http://other.example/x", server="some/1.2")
    part.by_tcp('flow:to_client; http.location; content:"other.example"', (get, moved, get, response()), protocol="http")
    part.by_tcp('http.server; content:"some/1."; startswith; bsize:8', (get, moved, get, response(server="any")), protocol="http")
    part.by_tcp('http.server; content:"me"', (request(server="me"), response(server="you")), protocol="http")
    return part


def actions():
    part = Part("actions", 12_000_000)
    port = part.rule("udp any any -> any $PORT", 'content:"bad"', "drop")
    for flow in [(b"bad",), (b"good", b"bad", b"good")]:
        part.flow = getattr(part, "flow", 20_000) + 1
        for payload in flow:
            part.udp(port, payload, client_port=part.flow)
    port = part.rule("udp any any -> any $PORT", 'content:"bad"', "reject")
    part.udp(port, b"bad", b"good")
    # A packet that a pass rule accepts is not inspected further.
    port = part.rule("udp any any -> any $PORT", 'content:"friend"', "pass")
    part.rule(f"udp any any -> any {port}", 'content:"bad"', "drop")
    part.rule(f"udp any any -> any {port}", 'content:"bad"', "alert")
    part.udp(port, b"bad friend", b"bad", b"friend")
    # One packet matches both a drop rule and an alert rule.
    port = part.rule("udp any any -> any $PORT", 'content:"bad"', "alert")
    part.rule(f"udp any any -> any {port}", 'content:"bad"', "drop")
    part.udp(port, b"bad", b"good")
    get = lambda path: request(f"GET {path} HTTP/1.1")
    plain = response()
    part.by_tcp('flow:to_server; content:"bad"', (b"good", b"so so", b"bad", b"?", b"good"), action="drop")
    part.by_tcp(
        'flow:to_server; http.uri; content:"/bad"',
        (get("/good"), plain, get("/bad"), plain, get("/good"), plain),
        protocol="http",
        action="drop",
    )
    part.by_tcp(
        'flow:to_server; http.uri; content:"/bad"',
        (get("/good"), plain, get("/bad"), plain),
        protocol="http",
        action="reject",
    )
    part.by_tcp(
        'flow:to_client; http.stat_code; content:"404"',
        (get("/"), response(line="HTTP/1.1 404 Not Found"), get("/"), plain),
        protocol="http",
        action="drop",
    )
    port = part.rule("tcp any any -> any $PORT", "flags:S; window:4321", "drop")
    for window in [4321, 1234]:
        part.flow += 1
        part.send(IP(src=CLIENT, dst=SERVER) / TCP(sport=part.flow, dport=port, flags="S", window=window))
    port = part.rule("icmp 10.3.0.77 any -> any any", "itype:8", "drop")
    part.send(IP(src="10.3.0.77", dst=SERVER) / ICMP(type=8) / Raw(b"1"))
    part.send(IP(src="10.3.0.77", dst=SERVER) / ICMP(type=13, ts_ori=1, ts_rx=1, ts_tx=1) / Raw(b"1"))
    port = part.rule("udp any any -> any $PORT", "detection_filter:track by_src,count 2,seconds 60", "drop")
    part.udp(port, *[b"often"] * 5)
    port = part.rule("udp any any -> any $PORT", "threshold:type limit,track by_src,count 1,seconds 60", "drop")
    part.udp(port, *[b"often"] * 3)
    return part


def streams():
    part = Part("streams", 13_000_000)

    def over(options, *steps, header="tcp any any -> any $PORT"):
        """Steps are bytes, or places and bytes of segments that come in another order than they lie."""
        connection = Connection(part, part.rule(header, options))
        connection.open()
        begin = connection.next[0]
        for step in steps:
            if isinstance(step, bytes):
                connection.say(step)
            else:
                connection.segment(True, "PA", step[1], begin + step[0])
                connection.next[0] = max(connection.next[0], begin + step[0] + len(step[1]))
                connection.segment(False, "A")
        connection.close()

    over('content:"over the cut"', b"over th", b"e cut")
    over('content:"three parts"', b"thr", b"ee pa", b"rts")
    over('content:"far"; content:"apart"; distance:0', b"far ", b"x" * 90, b"apart")
    over('content:"early"; content:"late"', b"early", b"late", b"more")
    over('content:"once"', b"once", b"then", b"more")
    over('content:"twice"', b"twice", b"twice")
    over(r'pcre:"/cut[0-9]{4}/"', b"cut12", b"34")
    over('content:"at the cut"; offset:4', b"xxxxat t", b"he cut")
    over('content:"beginning"; depth:9', b"beginning", b"beginning")
    over('content:"begin"; startswith', b"begin", b"begin")
    over("dsize:5", b"12345", b"123456")
    over('content:"a"; dsize:5', b"a2345", b"a23456", b"b2345")
    over('flow:no_stream; content:"over the cut"', b"over th", b"e cut", b"over the cut")
    over('flow:only_stream; content:"over the cut"', b"over th", b"e cut")
    over('content:"in order"', (3, b"order"), (0, b"in "))
    over('content:"again"', (0, b"again"), (0, b"again"))
    over('content:"again"', (0, b"aga"), (0, b"again"))
    over('content:"!end"; endswith', b"x!e", b"nd")
    over('content:"over the cut"', b"over th", b"e cut", header="tcp-pkt any any -> any $PORT")
    over('content:"over the cut"', b"over th", b"e cut", header="tcp-stream any any -> any $PORT")
    over('content:"x"; content:!"forbidden"', b"x for", b"bidden")
    over('content:"one"; isdataat:!1,relative', b"xx one", b" two")
    over('byte_test:1,>,100,0; content:"z"', b"\x65z", b"\x10z")
    over('content:"k="; byte_test:1,>,100,0,relative', b"k=", b"\x65")
    return part


def fragments():
    part = Part("fragments", 14_000_000)

    def over(options, payload, order=None, six=False, header="udp any any -> any $PORT"):
        port = part.rule(header, options)
        part.flow = getattr(part, "flow", 20_000) + 1
        ports = UDP(sport=part.flow, dport=port)
        if six:
            pieces = fragment6(
                IPv6(src=CLIENT6, dst=SERVER6) / IPv6ExtHdrFragment(id=part.flow) / ports / Raw(payload), 120
            )
        else:
            pieces = fragment(IP(src=CLIENT, dst=SERVER, id=part.flow) / ports / Raw(payload), 64)
        for number in order or range(len(pieces)):
            part.send(pieces[number])

    text = b"x" * 50 + b"over the cut" + b"y" * 60
    over('content:"over the cut"', text)
    over('content:"over the cut"', text, [1, 0, *range(2, 3)])
    over('content:"over the cut"', text, [0])
    over('content:"over the cut"', b"x" * 60 + b"over the cut" + b"y" * 60, six=True)
    over('content:"not there"', text)
    over(f"dsize:{len(text)}", text)
    over('content:"over the cut"; offset:50; depth:12', text)
    return part


def sample():
    """Packets for rules of `taut ips sample`, which are in sample.rules: for some that alert and some that drop."""
    part = Part("sample", 0)
    part.flow = 20_000

    def over_tcp(port, *said):
        connection = Connection(part, port)
        connection.open()
        for turn, bytes_ in enumerate(said):
            connection.say(bytes_, turn % 2 == 0)
        connection.close()

    def query(name):
        part.udp(53, bytes(DNS(id=part.flow, rd=1, qd=DNSQR(qname=name))))

    get = lambda line="GET / HTTP/1.1", body=b"", **fields: request(line, body, **fields)
    plain = response()
    for first in [0, 90]:
        word = [f"taut{(number * 40_503 + 0x1D2B) & 0xFFFF:04x}" for number in range(first, first + 30)]
        text = [it.encode() for it in word]
        part.udp(53, bytes(12) + text[0], text[0])
        part.udp(53, b"xx\x01\x00\x00\x01xxxx" + text[1].upper(), b"xx\x01\x00\x00\x01" + text[1])
        for name in [
            f"{word[2]}.example",
            f"x{word[2]}.example",
            f"{word[3]}1234.long.example",
            f"{word[3]}12.long.example",
        ]:
            query(name)
        over_tcp(8000, get(f"POST /{word[4]}.php HTTP/1.1", b"x=1"), plain)
        over_tcp(8000, get(f"POST /{word[4]}.php?x HTTP/1.1", b"x=1"), plain)
        over_tcp(8000, get(f"GET /%2f{word[5].upper()} HTTP/1.1"), plain)
        over_tcp(8000, get(host=f"www.{word[6]}.example", user_agent="Badger/1"), plain)
        over_tcp(8000, get(host=f"www.{word[6]}.example", user_agent="Mozilla/5.0"), plain)
        over_tcp(8000, get(**{f"x_{word[7]}": "1", "cookie": f"id={word[7]}"}), plain)
        over_tcp(8000, get("POST / HTTP/1.1", text[8] + b" user=me"), plain)
        over_tcp(8000, get(), response(b"a <script>" + text[9]))
        over_tcp(8000, get(f"GET /{word[10]} HTTP/1.0", referer=word[10]), plain)
        over_tcp(8000, get(), response(line=f"HTTP/1.1 200 {word[11]}", content_type="text/html"))
        fields = dict(content_type="text/html", server=word[11], location=f"/{word[11]}")
        over_tcp(8000, get(), response(line=f"HTTP/1.1 200 {word[11]}", **fields))
        over_tcp(8000, get(accept=word[12]), plain)
        over_tcp(8000, hello(b"www." + text[13] + b".example", record_version=0x0303), server_hello())
        over_tcp(21, text[14].upper() + b" abc abc\r\n", b"no\r\n")
        over_tcp(21, text[14] + b" abc abd\r\n", b"no\r\n")
        over_tcp(8445, b"none of them")
        over_tcp(445, b"xxxx\xffSMBxxx\x04\x00x\x80xx" + text[15])
        over_tcp(2000, text[16] + b"\x00\x0200ff", b"no")
        over_tcp(2000, text[16] + b"\x00\x020001", b"no")
        over_tcp(6667, b"PRIVMSG " + text[17] + b"\x05\x08", b"PRIVMSG " + text[17] + b"\x05\x09")
        over_tcp(2000, b"BEGIN " + text[18], b"no")
        for _ in range(32):
            part.send(IP(src=CLIENT, dst=SERVER) / ICMP(type=8, id=4660, seq=22136) / Raw(text[21]))
        for ttl in [2, 3]:
            part.send(
                IP(src=CLIENT, dst=CLIENT, ttl=ttl, tos=8, id=4660, flags="DF") / ICMP(type=8, id=ttl) / Raw(text[22])
            )
        for options in [[IPOption(b"\x83\x07\x04\x0a\x00\x00\x01")], []]:
            part.flow += 1
            part.send(IP(src=CLIENT, dst=SERVER, options=options) / UDP(sport=part.flow, dport=9) / Raw(text[23]))
        over_tcp(80, get(authorization="Basic " + base64.b64encode(b"me:" + text[24]).decode()), plain)
        over_tcp(80, get(authorization="Basic " + word[24]), plain)
        for maker in [text[25], b"another"]:
            names = [(NAME, text[25].upper() + b".example")], [(MAKER, maker), (NAME, b"any")]
            over_tcp(8000, hello(b"any.example"), server_hello() + certificate_record([certificate(*names, b"\x0a\x0b")]))
        over_tcp(25, b"EHLO me\r\nMAIL FROM:<" + text[28] + b">\r\n", b"220 me\r\n")
        over_tcp(25, b"any\r\nMAIL FROM:<" + text[28] + b">\r\n", b"220 me\r\n")
        over_tcp(21, b"USER me\r\nRETR " + text[29] + b"\r\n", b"220 me\r\n")
        over_tcp(21, b"USER me\r\n", b"331 and?\r\n", b"RETR " + text[29] + b"\r\n")
    return part


PARTS = [
    sample,
    contents,
    expressions,
    numbers,
    headers,
    icmp,
    sides,
    flows,
    rates,
    http,
    dns,
    tls,
    actions,
    streams,
    fragments,
    certificates,
    hosts,
]


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit("usage: corpus.py FOLDER (a folder that is there)")
    for make in PARTS:
        part = make()
        part.write(sys.argv[1])
        print(f"{part.name}: {len(part.rules)} rules, {len(part.frames)} packets")


if __name__ == "__main__":
    main()
