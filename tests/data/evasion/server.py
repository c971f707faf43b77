"""Says of each request the client's port, its path and its body: what Python's server was handed."""

import http.server
import socket
import sys
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 1

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_GET(self):
        body = self.body().decode("latin-1")
        path = urllib.parse.unquote(self.path)
        sys.stdout.write(f"{self.client_address[1]} {path} {body}\n")
        sys.stdout.flush()
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_GET

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    request_queue_size = 1024

    def handle_error(self, *_):
        """Broken requests are what it is here for."""


server = Server(("::", int(sys.argv[1])), Handler)
server.serve_forever()
