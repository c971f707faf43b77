"""A P4Runtime server in front of an OpenFlow switch: table entries of the pipeline in tests/data/p4runtime.p4info.txtpb
become flow entries. Arguments: the TCP port of the OpenFlow switch. Prints its own port."""

import queue
import socket
import struct
import sys
import threading
from concurrent import futures

import grpc


def fields(message):
    """Returns the fields of a protobuf message: number -> list of numbers or bytes."""
    found, at = {}, 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = message[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(message):
        key = varint()
        value = varint()
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        found.setdefault(key >> 3, []).append(value)
    return found


def first(message, number, default):
    return message.get(number, [default])[0]


def field(number, value):
    """Returns an encoded field: a number, or bytes."""

    def varint(number):
        text = b""
        while number > 127:
            text += bytes([number & 127 | 128])
            number >>= 7
        return text + bytes([number])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


class Switch:
    """A controller of an OpenFlow 1.3 switch."""

    def __init__(self, port):
        self.line = socket.create_connection(("127.0.0.1", port))
        self.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.line.makefile("rb")
        self.replies = queue.Queue()
        self.lock = threading.Lock()
        self.send(0, b"")
        threading.Thread(target=self.receive, daemon=True).start()

    def send(self, kind, body):
        with self.lock:
            self.line.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), 7) + body)

    def flow(self, command, port, network, priority, out):
        oxm = b""
        if port is not None:
            oxm += bytes.fromhex("80000004") + struct.pack("!I", port)
        if network is not None:
            address, length = network
            mask = (1 << 32) - (1 << (32 - length))
            oxm += bytes.fromhex("80000a020800") + bytes.fromhex("80001908") + struct.pack("!II", address, mask)
        match = struct.pack("!HH", 1, 4 + len(oxm)) + oxm
        match += bytes(-len(match) % 8)
        body = struct.pack("!16xBBHHHIIIHH", 0, command, 0, 0, priority, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0)
        body += match
        if out is not None:
            body += struct.pack("!HH4xHHIH6x", 4, 24, 0, 16, out, 0)
        self.send(14, body)

    def barrier(self):
        self.send(20, b"")
        reply = self.replies.get(timeout=60)
        if reply is not None:
            raise ValueError(reply)

    def receive(self):
        while len(head := self.file.read(8)) == 8:
            _, kind, length, _ = struct.unpack("!BBHI", head)
            body = self.file.read(length - 8)
            if kind == 1:
                self.replies.put("OpenFlow error " + body.hex())
            if kind == 2:
                self.send(3, body)
            if kind == 21:
                self.replies.put(None)
        self.replies.put("the OpenFlow switch is gone")


class Server:
    OK, EXISTS, MISSING, INVALID = 0, 6, 5, 3

    def __init__(self, port):
        self.switch = Switch(port)
        self.lock = threading.Lock()
        self.primary = None
        self.cookie = 0
        self.entries = {}

    def capabilities(self, request, context):
        return field(1, b"1.4.0")

    def stream(self, requests, context):
        mine = None
        for request in requests:
            update = fields(first(fields(request), 1, b""))
            if first(update, 1, 0) != 1:
                context.abort(grpc.StatusCode.NOT_FOUND, "there is only device 1")
            mine = first(update, 3, b"")
            low = first(fields(mine), 2, 0)
            is_primary = self.primary is None or low >= first(fields(self.primary), 2, 0)
            if is_primary:
                self.primary = mine
            status = field(1, 0 if is_primary else 6)
            yield field(1, field(1, 1) + field(3, self.primary) + field(4, status))
        if mine == self.primary:
            self.primary = None

    def allow(self, request, context):
        if first(request, 3, None) != self.primary or self.primary is None:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not primary")

    def set_pipeline(self, request, context):
        request = fields(request)
        self.allow(request, context)
        config = fields(first(request, 5, b""))
        if first(config, 2, b"") != b"{}" or first(request, 4, 0) != 3:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no pipeline")
        self.cookie = first(fields(first(config, 3, b"")), 1, 0)
        return b""

    def get_pipeline(self, request, context):
        if self.cookie == 0:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no pipeline yet")
        return field(1, field(3, field(1, self.cookie)))

    def read(self, request, context):
        with self.lock:
            entries = list(self.entries.values())
        for entry in entries:
            yield field(1, field(2, entry))

    def write(self, request, context):
        request = fields(request)
        self.allow(request, context)
        with self.lock:
            codes = [self.update(fields(update)) for update in request.get(4, [])]
            self.switch.barrier()
        if any(codes):
            errors = b"".join(field(3, field(2, field(1, code) if code else b"")) for code in codes)
            context.set_trailing_metadata((("grpc-status-details-bin", field(1, 2) + errors),))
            context.abort(grpc.StatusCode.UNKNOWN, "some updates failed")
        return b""

    def update(self, update):
        kind = first(update, 1, 0)
        entry = first(fields(first(update, 2, b"")), 2, b"")
        known = fields(entry)
        priority = first(known, 4, 0)
        if first(known, 1, 0) != 33 or priority == 0:
            return self.INVALID
        port = network = None
        for match in map(fields, known.get(2, [])):
            if first(match, 1, 0) == 1:
                ternary = fields(match[3][0])
                if ternary[2][0] != bytes.fromhex("01ff"):
                    return self.INVALID
                port = int.from_bytes(ternary[1][0], "big")
            else:
                prefix = fields(match[4][0])
                network = (int.from_bytes(prefix[1][0], "big"), prefix[2][0])
        out = None
        if kind != 3:
            action = fields(first(fields(first(known, 3, b"")), 1, b""))
            if first(action, 1, 0) == 16:
                out = int.from_bytes(first(fields(action[4][0]), 3, b""), "big")
            elif first(action, 1, 0) != 17:
                return self.INVALID
        key = (port, network, priority)
        if (key in self.entries) != (kind != 1):
            return self.EXISTS if kind == 1 else self.MISSING
        if kind == 3:
            del self.entries[key]
        else:
            self.entries[key] = entry
        self.switch.flow({1: 0, 2: 2, 3: 4}[kind], port, network, priority, out)
        return self.OK


def main():
    server = Server(int(sys.argv[1]))
    unary, out, both = (
        grpc.unary_unary_rpc_method_handler,
        grpc.unary_stream_rpc_method_handler,
        grpc.stream_stream_rpc_method_handler,
    )
    methods = {
        "Capabilities": unary(server.capabilities),
        "StreamChannel": both(server.stream),
        "SetForwardingPipelineConfig": unary(server.set_pipeline),
        "GetForwardingPipelineConfig": unary(server.get_pipeline),
        "Read": out(server.read),
        "Write": unary(server.write),
    }
    listener = grpc.server(futures.ThreadPoolExecutor(8))
    listener.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("p4.v1.P4Runtime", methods),))
    print(listener.add_insecure_port("127.0.0.1:0"), flush=True)
    listener.start()
    sys.stdin.read()


main()
