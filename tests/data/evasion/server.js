// Says of each request the client's port, its path and its body: what Node was handed. Of /file?ENCODING&WORD it says all, and answers
// a body with WORD in it, in chunks.
const http = require("http");
const zlib = require("zlib");

const encoders = {
    identity: (it) => it,
    gzip: zlib.gzipSync,
    deflate: zlib.deflateSync,
    br: zlib.brotliCompressSync,
};

function file(query, response) {
    // What hides an attack may make another query of it.
    const [encoding, word = "", digits] = (query ?? "").split("&");
    const seed = Number(digits) || 0;
    const around = "0123456789 some text that compresses\n".repeat(1 + (seed % 40));
    const isKnown = Object.hasOwn(encoders, encoding);
    const encode = isKnown ? encoders[encoding] : encoders.identity;
    const body = encode(Buffer.from(`${around}${word.toUpperCase()}-file-data${around}`));
    const headers = encode === encoders.identity ? {} : { "Content-Encoding": encoding };
    response.writeHead(200, { "Content-Type": "text/plain", ...headers });
    const size = 1 + (seed % 97);
    for (let at = 0; at < body.length; at += size) response.write(body.subarray(at, at + size));
    response.end();
}

const server = http.createServer((request, response) => {
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", () => {
        const [path, query] = request.url.split("?");
        let decoded = path;
        try {
            decoded = decodeURIComponent(path);
        } catch {
            // A path that is none stays as it is.
        }
        const asked = path === "/file" ? `${path}?${query}` : decoded;
        process.stdout.write(`${request.socket.remotePort} ${asked} ${body}\n`);
        if (path === "/file") file(query, response);
        else response.end("ok");
    });
});
server.headersTimeout = server.requestTimeout = server.keepAliveTimeout = 1000;
server.connectionsCheckingInterval = 500;
server.on("clientError", (_, socket) => socket.destroy());
server.listen(Number(process.argv[2]), "::", 1024);
