//! Tests of the HTTP parser: the messages it reads are the same however their bytes are split.
#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

/// The buffers of a message.
type Message = Vec<(Buffer, Vec<u8>)>;

/// Returns all messages of a direction with the final content of their buffers, however the bytes are split.
fn messages(http: &mut Http, to_server: bool, pieces: &[&[u8]]) -> (Vec<Message>, Vec<HttpFault>) {
    let (mut all, mut faults) = (Vec::<Message>::new(), Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        let mut empty = 0;
        while !rest.is_empty() {
            let pushed = http.push(to_server, rest);
            empty = match pushed.consumed + pushed.from_held {
                0 => empty + 1,
                _ => 0,
            };
            assert!(empty < 3, "it takes no bytes");
            rest = &rest[pushed.consumed..];
            faults.extend(pushed.fault);
            let is_head = pushed.ready.contains(Buffer::HttpHeader);
            // The absence of a body is reported, too.
            let now = pushed
                .ready
                .iter()
                .filter_map(|it| Some((it, http.buffer_of(to_server, it)?.to_vec())));
            if is_head {
                all.push(now.collect());
            } else if let Some(last) = all.last_mut() {
                for (buffer, bytes) in now {
                    last.retain(|it| it.0 != buffer);
                    last.push((buffer, bytes));
                }
            }
        }
    }
    (all, faults)
}

fn get(message: &[(Buffer, Vec<u8>)], buffer: Buffer) -> &str {
    message
        .iter()
        .find(|it| it.0 == buffer)
        .map_or("-", |it| std::str::from_utf8(&it.1).unwrap())
}

const REQUESTS: &[u8] = b"POST /a%2Fb/./c/../d//e?x=%41/../y HTTP/1.1\r\nHost: WWW.Example.com:8080\r\nUser-Agent:  curl/8\r\n\
    Cookie: a=1\r\nX-Long: one\r\n  two\r\nContent-Length: 5\r\nCookie: b=2\r\n\r\nhelloGET / HTTP/1.0\nAccept: */*\n\n\
    PUT /u HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5;x=y\r\nabcde\r\n3\r\nfgh\r\n0\r\nTrailer: x\r\n\r\nHEAD /h HTTP/1.1\r\n\r\n";

#[test]
fn pipelined_requests_are_all_parsed() {
    let (all, faults) = messages(&mut Http::default(), true, &[REQUESTS]);
    // The third body is not encoded, although its head announces a coding.
    assert_eq!((all.len(), faults), (4, vec![HttpFault::Packing]));
    let first = &all[0];
    assert_eq!(get(first, Buffer::HttpMethod), "POST");
    assert_eq!(
        get(first, Buffer::HttpRawUri),
        "/a%2Fb/./c/../d//e?x=%41/../y"
    );
    assert_eq!(get(first, Buffer::HttpUri), "/a/b/d/e?x=A/../y");
    assert_eq!(get(first, Buffer::HttpHost), "www.example.com");
    assert_eq!(get(first, Buffer::HttpUserAgent), "curl/8");
    assert_eq!(get(first, Buffer::HttpCookie), "a=1, b=2");
    assert_eq!(
        get(first, Buffer::HttpHeader),
        "Host: WWW.Example.com:8080\r\nUser-Agent: curl/8\r\nX-Long: one two\r\nContent-Length: 5\r\n"
    );
    assert_eq!(get(first, Buffer::HttpClientBody), "hello");
    assert_eq!(get(&all[1], Buffer::HttpProtocol), "HTTP/1.0");
    assert_eq!(get(&all[1], Buffer::HttpAccept), "*/*");
    assert_eq!(get(&all[2], Buffer::HttpClientBody), "abcdefgh");
    assert_eq!(get(&all[3], Buffer::HttpMethod), "HEAD");
}

#[test]
fn the_end_of_a_response_depends_on_its_request() {
    let mut http = Http::default();
    messages(
        &mut http,
        true,
        &[b"HEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"],
    );
    let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found here\r\nSet-Cookie: s=1\r\n\
        Content-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\nall the rest HTTP/1.1 500 x\r\n\r\n";
    let (all, faults) = messages(&mut http, false, &[answers]);
    assert_eq!((all.len(), faults), (4, vec![]));
    assert_eq!(get(&all[2], Buffer::HttpStatusCode), "404");
    assert_eq!(get(&all[2], Buffer::HttpStatusMessage), "Not Found here");
    assert_eq!(get(&all[2], Buffer::HttpCookie), "s=1");
    assert_eq!(get(&all[2], Buffer::HttpServerBody), "abc");
    assert!(get(&all[3], Buffer::HttpServerBody).starts_with("all the rest"));
}

#[test]
fn invalid_messages_report_their_fault() {
    let faults = |to_server, bytes: &[u8]| messages(&mut Http::default(), to_server, &[bytes]).1;
    assert_eq!(
        faults(true, b"GET / HTTP/1.1\r\nno colon\r\n\r\n"),
        [HttpFault::HeaderLine]
    );
    assert_eq!(
        faults(
            true,
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"
        ),
        [HttpFault::Lengths]
    );
    let both =
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(faults(true, both), [HttpFault::Lengths]);
    assert_eq!(
        faults(
            true,
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"
        ),
        [HttpFault::Chunk]
    );
    assert_eq!(
        faults(false, b"SSH-2.0-x y\r\n\r\n"),
        [HttpFault::FirstLine]
    );
}

proptest! {
    #[test]
    fn requests_are_parsed_equally_at_any_split(cuts in prop::collection::vec(0usize..REQUESTS.len(), 0..12)) {
        let mut cuts = cuts;
        cuts.extend([0, REQUESTS.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|it| &REQUESTS[it[0]..it[1]]).collect();
        let whole = messages(&mut Http::default(), true, &[REQUESTS]);
        prop_assert_eq!(messages(&mut Http::default(), true, &pieces), whole);
    }

    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..300, to_server in any::<bool>()) {
        let mut http = Http::default();
        messages(&mut http, to_server, &[&bytes]);
        http.reset();
        let mut damaged = REQUESTS.to_vec();
        let at = at % damaged.len();
        damaged.splice(at..at, bytes);
        messages(&mut http, true, &[&damaged]);
    }
}

#[test]
fn an_unrequested_response_is_not_assigned_to_a_later_request() {
    let mut http = Http::default();
    let unasked = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    messages(&mut http, false, &[unasked]);
    messages(&mut http, true, &[b"HEAD / HTTP/1.1\r\n\r\n"]);
    let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 404 No\r\n\r\n";
    let (all, faults) = messages(&mut http, false, &[answers]);
    assert_eq!((all.len(), faults), (2, vec![]));
}

#[test]
fn every_http_buffer_has_space_for_the_longest_head() {
    let head = |line: &[u8], n: usize, rest: &[u8]| {
        [b"POST /x HTTP/1.1\r\n", &line.repeat(n)[..], rest].concat()
    };
    let rest = b"Transfer-Encoding: chunked\r\nHost: h\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    for (line, n) in [(&b"a:b\n"[..], 1640), (b":\n", 4050), (b"Accept:\n", 1000)] {
        let (all, faults) = messages(&mut Http::default(), true, &[&head(line, n, rest)]);
        assert!(faults.iter().all(|it| *it == HttpFault::HeaderLine));
        assert_eq!(get(&all[0], Buffer::HttpHost), "h");
        assert_eq!(get(&all[0], Buffer::HttpClientBody), "body");
    }
    let long = "h".repeat(8100);
    let request = format!("GET / HTTP/1.1\nHost:{long}\n\n");
    let (all, _) = messages(&mut Http::default(), true, &[request.as_bytes()]);
    assert_eq!(get(&all[0], Buffer::HttpHost), long);
}

#[test]
fn header_names_and_the_start_of_a_request_are_unmodified() {
    let request: &[u8] = b"POST / HTTP/1.1\r\nHost: h\r\nno name\r\nCookie: c=1\r\nAccept-Encoding: gzip\r\nAccept-Language: de\r\n\
        Connection: close\r\nContent-Length: 2\r\n\r\nhi";
    let (all, _) = messages(&mut Http::default(), true, &[request]);
    let start = std::str::from_utf8(&request[..request.len() - 2]).unwrap();
    for (buffer, expected) in [
        (
            Buffer::HttpHeaderNames,
            "\r\nHost\r\nCookie\r\nAccept-Encoding\r\nAccept-Language\r\nConnection\r\nContent-Length\r\n\r\n",
        ),
        (Buffer::HttpStart, start),
        (Buffer::HttpAcceptEncoding, "gzip"),
        (Buffer::HttpAcceptLanguage, "de"),
        (Buffer::HttpConnection, "close"),
        (Buffer::HttpContentLength, "2"),
    ] {
        assert_eq!(get(&all[0], buffer), expected);
    }
}

#[test]
fn values_of_repeated_headers_are_joined() {
    let request = b"GET / HTTP/1.1\r\nHost: A:80\r\nUser-Agent: one\r\nAccept: x\r\nReferer: r\r\nX-Host: n\r\nContent-Type: t\r\n\
        HOST: b\r\nuser-agent : two\r\n more\r\nAccept:\r\nAccept: y\r\nReferer: q\r\nContent-Type: u\r\n\r\n";
    let (all, faults) = messages(&mut Http::default(), true, &[request]);
    assert_eq!(faults, [HttpFault::HeaderLine]);
    for (buffer, expected) in [
        (Buffer::HttpHost, "a, b"),
        (Buffer::HttpUserAgent, "one, two more"),
        (Buffer::HttpAccept, "x, , y"),
        (Buffer::HttpReferer, "r, q"),
        (Buffer::HttpContentType, "t, u"),
    ] {
        assert_eq!(get(&all[0], buffer), expected);
    }
    let both = b"Server: one\r\nLocation: /a\r\nServer: two\r\nContent-Length: 0\r\n\r\n";
    let response = [&b"HTTP/1.1 302 Found\r\n"[..], both].concat();
    let (all, _) = messages(&mut Http::default(), false, &[&response]);
    assert_eq!(get(&all[0], Buffer::HttpServer), "one, two");
    assert_eq!(get(&all[0], Buffer::HttpLocation), "/a");
    // Requests do not have these header lines.
    let request = [&b"GET / HTTP/1.1\r\n"[..], both].concat();
    let (all, _) = messages(&mut Http::default(), true, &[&request]);
    assert!(all[0].iter().all(|it| it.0 != Buffer::HttpServer));
    let faults = |bytes: &[u8]| messages(&mut Http::default(), true, &[bytes]).1;
    assert_eq!(
        faults(b"GET / HTTP/1.1\nHost: a\nHost: a\n\n"),
        [HttpFault::HeaderLine]
    );
    assert_eq!(faults(b"GET / HTTP/1.1\nAccept: a\nAccept: a\n\n"), []);
}

#[test]
fn the_host_in_the_target_overrides_the_host_header() {
    for (target, expected) in [
        ("http://Evil/x", "evil"),
        ("http://user:word@evil:80", "evil"),
        ("https://[2001:DB8::1]:443?q", "[2001:db8::1]"),
        ("http:///x", "good"),
        ("/http://evil/", "good"),
        ("evil:443", "good"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: good\r\n\r\n");
        let (all, _) = messages(&mut Http::default(), true, &[request.as_bytes()]);
        assert_eq!(get(&all[0], Buffer::HttpHost), expected, "{target}");
        assert_eq!(get(&all[0], Buffer::HttpRawUri), target);
    }
    let request = b"GET http://evil/ HTTP/1.1\r\n\r\n";
    let (all, _) = messages(&mut Http::default(), true, &[request]);
    assert_eq!(get(&all[0], Buffer::HttpHost), "evil");
}

#[test]
fn all_cookie_headers_are_in_the_cookie_buffer() {
    let request = [
        &b"GET / HTTP/1.1\r\n"[..],
        &b"Cookie: a=1\r\nX: y\r\n".repeat(20),
        b"\r\n",
    ]
    .concat();
    let (all, _) = messages(&mut Http::default(), true, &[&request]);
    assert_eq!(get(&all[0], Buffer::HttpCookie), ["a=1"; 20].join(", "));
    assert_eq!(get(&all[0], Buffer::HttpHeader), "X: y\r\n".repeat(20));
}

#[test]
fn extra_white_space_hides_no_header_or_chunk() {
    for blank in [" ", "\t", " \r\n ", "\r"] {
        let request = format!(
            "POST / HTTP/1.1\r\n{blank}Host: h\r\nTransfer-Encoding: chunked\r\n\r\n \t4 \r\nbody\r\n 0\r\n\r\n"
        );
        let (all, faults) = messages(&mut Http::default(), true, &[request.as_bytes()]);
        assert_eq!(faults, [HttpFault::HeaderLine], "{blank:?}");
        assert_eq!(get(&all[0], Buffer::HttpHost), "h");
        assert!(get(&all[0], Buffer::HttpHeader).starts_with("Host: h\r\n"));
        assert_eq!(get(&all[0], Buffer::HttpClientBody), "body");
    }
}

#[test]
fn http_parsing_ends_when_the_server_accepts_a_tunnel() {
    const NEXT: &[u8] = b"GET /next HTTP/1.1\r\n\r\n";
    let connect = b"CONNECT h:443 HTTP/1.1\r\n\r\n";
    let upgrade = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n";
    let plain = b"GET / HTTP/1.1\r\n\r\n";
    for (request, status, is_read) in [
        (&connect[..], 200, false),
        (connect, 405, true),
        (connect, 101, true),
        (upgrade, 101, false),
        (upgrade, 200, true),
        (plain, 101, true),
        (plain, 200, true),
    ] {
        let mut http = Http::default();
        messages(&mut http, true, &[request]);
        let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
        messages(&mut http, false, &[answer.as_bytes()]);
        let (all, _) = messages(&mut http, true, &[NEXT]);
        assert_eq!(all.len(), usize::from(is_read), "{status}");
    }
}

#[test]
fn responses_beyond_the_pending_request_limit_are_parsed_with_body() {
    let mut http = Http::default();
    messages(&mut http, true, &[&b"HEAD / HTTP/1.1\r\n\r\n".repeat(16)]);
    messages(&mut http, true, &[&b"GET / HTTP/1.1\r\n\r\n".repeat(4)]);
    let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc".repeat(20);
    let (all, faults) = messages(&mut http, false, &[&answers]);
    assert_eq!((all.len(), faults), (20, vec![]));
    assert!(
        all.iter()
            .all(|it| get(it, Buffer::HttpServerBody) == "abc")
    );
}

#[test]
fn paths_are_normalised_in_the_manner_of_servers() {
    let table = [
        ("/a/..", "/"),
        ("/a/.?b/..", "/a/?b/.."),
        ("/../../a", "/a"),
        ("/a:/../b//c", "/b/c"),
        ("/x://../y", "/y"),
        ("http://host/../x", "/x"),
        ("http://host/a/../x//y", "/x/y"),
        ("http://host", "/"),
        ("http://host?a=/../b", "/?a=/../b"),
        ("HTTP://host:80/%61", "/a"),
        ("http:///x", "/x"),
        ("/http://host/x", "/http:/host/x"),
        ("host:443", "host:443"),
        ("/%2e%2e/%252e", "/%2e"),
        ("*", "*"),
        ("..", ".."),
    ];
    for (target, expected) in table {
        let request = format!("GET {target} HTTP/1.1\r\n\r\n");
        let (all, _) = messages(&mut Http::default(), true, &[request.as_bytes()]);
        let found = all.first().map_or("", |first| get(first, Buffer::HttpUri));
        assert_eq!(found, expected, "{target}");
    }
}

/// The text in all bodies that the tests send.
const TEXT: &[u8] = b"the quick brown fox, the quick brown fox, the quick brown EICAR";

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; bytes.len() + 100];
    let mut deflate = flate2::Compress::new(flate2::Compression::best(), false);
    let all = flate2::FlushCompress::Finish;
    deflate.compress(bytes, &mut packed, all).unwrap();
    packed.truncate(deflate.total_out() as usize);
    packed
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    // The header has an extra field, a name and a comment.
    let head = b"\x1f\x8b\x08\x1c\0\0\0\0\0\x03\x02\0xyname\0comment\0";
    [&head[..], &deflated(bytes), b"checksum"].concat()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    [b"\x78\x9c", &deflated(bytes)[..], b"sum."].concat()
}

/// Returns the body of a response, its faults, and the limits it reached, if it arrives in pieces of `pieces` bytes.
fn response_in(
    pieces: usize,
    head: &str,
    body: &[u8],
) -> (Vec<u8>, Vec<HttpFault>, Vec<HttpLimit>) {
    let whole = [head.as_bytes(), body].concat();
    let mut http = Http::default();
    http.push(true, b"GET / HTTP/1.1\r\n\r\n");
    let (mut bytes, mut faults, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let mut look = |http: &Http, pushed: Pushed| {
        faults.extend(pushed.fault);
        limits.extend(pushed.limit);
        if pushed.ready.contains(Buffer::HttpServerBody) {
            let body = http.buffer_of(false, Buffer::HttpServerBody);
            let body = body.unwrap_or_default();
            bytes.truncate(pushed.body_from);
            bytes.extend_from_slice(&body[pushed.body_from..]);
            assert_eq!(bytes, body);
        }
    };
    for piece in whole.chunks(pieces) {
        let mut rest = piece;
        while !rest.is_empty() {
            let pushed = http.push(false, rest);
            rest = &rest[pushed.consumed..];
            look(&http, pushed);
        }
    }
    let pushed = http.close(false);
    look(&http, pushed);
    (bytes, faults, limits)
}

/// Returns the same as [`response_in`], and checks that the result does not depend on how the response is split.
fn response(head: &str, body: &[u8]) -> (Vec<u8>, Vec<HttpFault>, Vec<HttpLimit>) {
    let whole = response_in(usize::MAX, head, body);
    for size in [1, 2, 3, 7, 50] {
        assert_eq!(response_in(size, head, body), whole, "{head} in {size}s");
    }
    whole
}

#[test]
fn http_parsing_gives_the_same_messages_for_single_byte_segments() {
    let text = b" HTTP/1.1\r\nContent-Length: 5\r\n \nhelloHEAD / HTTP/1.1\r\n\r\n";
    let one_by_one: Vec<&[u8]> = text.chunks(1).collect();
    let whole = messages(&mut Http::default(), false, &[text]);
    assert_eq!(messages(&mut Http::default(), false, &one_by_one), whole);
    assert_eq!(whole.0.len(), 1);
}

#[test]
fn a_response_head_is_parsed_when_the_connection_closes() {
    let mut http = Http::default();
    let head = b"HTTP/1.0 200 OK\r\nServer: one";
    assert_eq!(http.push(false, head).ready, BufferSet::default());
    let pushed = http.close(false);
    assert!(pushed.ready.contains(Buffer::HttpHeader));
    assert_eq!(http.buffer_of(false, Buffer::HttpServer), Some(&b"one"[..]));
    assert_eq!(http.close(false).ready, BufferSet::default());
}

#[test]
fn compressed_bodies_are_decompressed() {
    const BROTLI: &[u8] = b"\x1b\x3e\x00\xf8\x9d\x07\x76\x2c\x98\x8c\x1e\xf1\x14\x73\x53\x83\x04\x25\xd1\xa9\x22\xb3\x1a\x92\x6a\x16\xb4\x37\x3c\x3d\xc8\
        \x24\xaa\xd4\x23\x49\xd8\xa6\x23\x77\x81\xe8\x9a\x37\x2c\x31";
    let twice = deflated(&gzipped(TEXT));
    for (coding, packed) in [
        ("Content-Encoding: gzip", &gzipped(TEXT)[..]),
        ("content-encoding:X-GZIP", &gzipped(TEXT)),
        ("Content-Encoding: deflate", &deflated(TEXT)),
        ("Content-Encoding: deflate", &zlib(TEXT)),
        ("Content-Encoding: br", BROTLI),
        ("Content-Encoding: identity, gzip", &gzipped(TEXT)),
        ("Content-Encoding: gzip, deflate", &twice),
        (
            "Content-Encoding: gzip\r\nContent-Encoding: deflate",
            &twice,
        ),
        (
            "Content-Encoding: gzip\r\nTransfer-Encoding: deflate",
            &twice,
        ),
        ("Content-Encoding :\r\n gzip ,", &gzipped(TEXT)),
        ("Content-Encoding: gz\0ip", &gzipped(TEXT)),
        ("X: y\rContent-Encoding: gzip", &gzipped(TEXT)),
    ] {
        for end in [
            String::new(),
            format!("\r\nContent-Length: {}", packed.len()),
        ] {
            let head = format!("HTTP/1.1 200 ok\r\n{coding}{end}\r\n\r\n");
            let (body, faults, limits) = response(&head, packed);
            assert_eq!(body, TEXT, "{head}");
            assert!(
                faults.iter().all(|it| *it == HttpFault::HeaderLine),
                "{head} {faults:?}"
            );
            assert_eq!(limits, []);
        }
    }
}

proptest! {
    #[test]
    fn compressed_bodies_are_decompressed_equally_at_any_split(cuts in prop::collection::vec(0usize..600, 0..12)) {
        let packed = gzipped(TEXT);
        let first = format!("HTTP/1.1 200 ok\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", packed.len());
        let second = format!("HTTP/1.1 200 ok\r\nContent-Encoding: gzip, deflate\r\n{CHUNKED}\r\n \r\n{:x}\r\n", deflated(&packed).len());
        let third = b"\r\n0\r\n\r\nHTTP/1.1 204 ok\r\nContent-Length: 3\r\n\r\nabc\n\tHTTP/1.1 200 ok\n\n";
        let whole = [first.as_bytes(), &packed, second.as_bytes(), &deflated(&packed), third, TEXT].concat();
        let mut cuts: Vec<_> = cuts.into_iter().map(|it| it.min(whole.len())).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|it| &whole[it[0]..it[1]]).collect();
        let all = messages(&mut Http::default(), false, &[&whole]);
        prop_assert_eq!(all.0.len(), 4);
        prop_assert_eq!(messages(&mut Http::default(), false, &pieces), all);
    }
}

const CHUNKED: &str = "Transfer-Encoding: chunked";

#[test]
fn two_gzip_members_form_one_body() {
    let head = "HTTP/1.1 200 ok\r\nContent-Encoding: gzip\r\n\r\n";
    let (first, second) = TEXT.split_at(20);
    let both = [gzipped(first), gzipped(second)].concat();
    assert_eq!(response(head, &both), (TEXT.to_vec(), vec![], vec![]));
}

#[test]
fn a_body_that_cannot_be_decompressed_stays_as_received() {
    for coding in ["gzip", "deflate", "br", "gzip, deflate"] {
        let head = format!("HTTP/1.1 200 ok\r\nContent-Encoding: {coding}\r\n\r\n");
        let (body, faults, _) = response_in(usize::MAX, &head, TEXT);
        assert!(body.ends_with(TEXT), "{coding}");
        assert_eq!(faults, [HttpFault::Packing]);
    }
    // One byte is too short to identify a format.
    let head = "HTTP/1.1 200 ok\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n";
    assert_eq!(response(head, b"\x1f").0, b"\x1f");
    // The output so far stays before the broken bytes. The input has a stored block, and then a block of an invalid
    // kind.
    let stored = [b"\0\x3f\0\xc0\xff", TEXT, b"\x07junk"].concat();
    let head = "HTTP/1.1 200 ok\r\nContent-Encoding: deflate\r\n\r\n";
    let (body, faults, _) = response_in(usize::MAX, head, &stored);
    assert!(body.starts_with(TEXT) && body.ends_with(b"\x07junk"));
    assert_eq!(faults, [HttpFault::Packing]);
}

#[test]
fn a_body_that_exceeds_its_limit_is_reported_once() {
    let limit = HttpLimits::default().response_body;
    let long = [b"x".repeat(limit), TEXT.to_vec()].concat();
    let plain = "HTTP/1.1 200 ok\r\n\r\n";
    let (body, faults, limits) = response_in(1460, plain, &long);
    assert_eq!(
        (body.len(), faults, limits),
        (limit, vec![], vec![HttpLimit::Body])
    );
    let random: Vec<u8> = (0..2 * limit as u32)
        .map(|it| (it.wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect();
    let gzip = "HTTP/1.1 200 ok\r\nContent-Encoding: gzip\r\n\r\n";
    let (body, _, limits) = response_in(1460, gzip, &gzipped(&random));
    assert_eq!(
        (&body[..], limits),
        (&random[..limit], vec![HttpLimit::Body])
    );
    // The ratio is a thousand: most of the body stays unchanged.
    let zeros = gzipped(&vec![0; 1 << 20]);
    let (body, faults, limits) = response_in(1460, gzip, &zeros);
    assert_eq!((faults, limits), (vec![], vec![HttpLimit::Ratio]));
    assert!(body.len() < 40_000 && body.ends_with(b"checksum"));
    let three = "HTTP/1.1 200 ok\r\nContent-Encoding: deflate, gzip, deflate\r\n\r\n";
    let (body, _, limits) = response(three, &deflated(&gzipped(&deflated(TEXT))));
    assert_eq!((body, limits), (deflated(TEXT), vec![HttpLimit::Codings]));
}

#[test]
fn long_heads_are_read_up_to_their_limit() {
    let limit = HttpLimits::default().head;
    let line = format!("X: {}\r\n", "a".repeat(limit));
    for (limit, line, is_cut) in [(limit, line.as_str(), true), (limit, "X: a\r\n", false)] {
        let lines = if is_cut {
            String::new()
        } else {
            line.repeat(limit / 6 - 20)
        };
        let late = if is_cut { line } else { "" };
        let request = format!(
            "POST /uri HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n{lines}{late}\r\nbodyGET /b HTTP/1.1\r\n\r\n"
        );
        for size in [usize::MAX, 1000, 1] {
            let pieces: Vec<&[u8]> = request.as_bytes().chunks(size).collect();
            let (all, faults) = messages(&mut Http::default(), true, &pieces);
            assert_eq!((all.len(), faults), (2, vec![]));
            assert_eq!(get(&all[0], Buffer::HttpHost), "h");
            assert_eq!(get(&all[0], Buffer::HttpClientBody), "body");
            assert_eq!(get(&all[1], Buffer::HttpUri), "/b");
        }
        let pushed = Http::default().push(true, request.as_bytes());
        assert_eq!(pushed.limit, is_cut.then_some(HttpLimit::Head));
    }
    let late = format!(
        "HTTP/1.1 200 ok\r\n{line}Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
    );
    let (body, faults, limits) = response_in(1000, &late, b"");
    assert_eq!(
        (&body[..], faults, limits),
        (&b"body"[..], vec![], vec![HttpLimit::Head])
    );
}

#[test]
fn malformed_responses_are_parsed_in_the_manner_of_clients() {
    let chunks = b"f\r\nthe quick brown\r\n30\r\n fox, the quick brown fox, the quick brown EICAR\r\n0\r\n\r\n";
    let sizes = b"\r\n fx\r\nthe quick brown\r\n\x0b30\x0c;a=\"b\"\r\n fox, the quick brown fox, the quick brown EICAR\r\n0\r\n\r\n";
    let chunked = CHUNKED;
    for (first, lines, body) in [
        ("HTTP/1.1 200 ok", chunked, &chunks[..]),
        ("HTTP/1.1 200 ok", chunked, sizes),
        ("HTTP/1.1 200 ok", chunked, TEXT),
        (
            "HTTP/1.0 200 ok",
            "Content-Length: 63\r\nTransfer-Encoding: chunked",
            TEXT,
        ),
        ("http/1.1 200 ok", chunked, chunks),
        ("HTTP/1.1", chunked, chunks),
        ("HTTP/1.1foobar\rTransfer-Encoding:chunked", "X: y", chunks),
        ("\0HTTP/1.1 200", chunked, chunks),
        (" \r\n\t\r\n foobar\r\nHTTP/1.1 200", chunked, chunks),
        ("HTTP/1.1 200 ok", "Transfer-Encoding: xchunked", chunks),
        ("HTTP/1.1 200 ok", "Transfer-Encoding: chu\0nked", chunks),
        ("HTTP/1.1 200 ok", "Transfer\0-Encoding: chunked,", chunks),
        (
            "HTTP/1.1 200 ok",
            "Transfer-Encoding \r\n : x\r\n chunked",
            chunks,
        ),
        (
            "HTTP/1.1 200 ok",
            "X: y\r\n Transfer-Encoding: chunked",
            chunks,
        ),
        ("HTTP/1.1 100 ok", "Content-Length: 63", TEXT),
        ("HTTP/1.1 101 ok", "Content-Length: 63", TEXT),
        ("HTTP/1.1 204 ok", chunked, chunks),
        ("HTTP/1.1 304 ok", "X: y", TEXT),
        ("HTTP/1.1 200 ok", "Content-Length: 63\n \t", TEXT),
    ] {
        for end in ["\r\n\r\n", "\n\r\r\n", "\n\n", "\r\n \r\n\r\n", "\n\t\n"] {
            let head = format!("{first}\r\n{lines}{end}");
            assert_eq!(response(&head, body).0, TEXT, "{head:?}");
        }
    }
}

#[test]
fn bytes_outside_of_any_message_are_treated_as_a_body() {
    // The first response has no head (HTTP/0.9); bytes follow the second one.
    assert_eq!(
        response("the quick ", b"HTTP/1.1\r\n\r\nEICAR").0,
        b"the quick HTTP/1.1\r\n\r\nEICAR"
    );
    let head = "HTTP/1.1 200 ok\r\nContent-Length: 0\r\n\r\n";
    let (body, faults, _) = response(head, TEXT);
    assert_eq!((&body[..], faults), (TEXT, vec![HttpFault::FirstLine]));
    let chunked = "HTTP/1.1 200 ok\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (body, faults, _) = response(chunked, b"3\r\nthe\r\n!quick\r\n\r\n");
    assert_eq!(
        (&body[..], faults),
        (&b"the!quick\r\n\r\n"[..], vec![HttpFault::Chunk])
    );
    // The next request is found after an invalid one.
    let requests: &[u8] = b"Host: evil\r\n\r\nGET /next HTTP/1.1\r\n\r\n";
    for size in [usize::MAX, 1] {
        let pieces: Vec<&[u8]> = requests.chunks(size).collect();
        let (all, faults) = messages(&mut Http::default(), true, &pieces);
        assert_eq!((all.len(), faults), (1, vec![HttpFault::FirstLine]));
        assert_eq!(get(&all[0], Buffer::HttpUri), "/next");
    }
    let mut http = Http::default();
    let pushed = http.push(true, b"Host: evil\r\n\r\n");
    assert!(pushed.ready.contains(Buffer::HttpClientBody) && pushed.body_is_whole);
    assert_eq!(
        http.buffer_of(true, Buffer::HttpClientBody),
        Some(&b"Host: evil\r\n\r\n"[..])
    );
    // The same holds for bytes after a gap.
    http.gap(true);
    let pushed = http.push(true, b"EICAR");
    assert_eq!((pushed.consumed, pushed.unread), (5, 0));
    assert!(
        http.buffer_of(true, Buffer::HttpClientBody)
            .unwrap()
            .ends_with(b"EICAR")
    );
}

#[test]
fn a_request_without_a_version_is_complete_after_one_line() {
    let mut http = Http::default();
    let pushed = http.push(true, b"GET /evil\r\n");
    assert!(pushed.ready.contains(Buffer::HttpUri));
    assert_eq!(http.buffer_of(true, Buffer::HttpUri), Some(&b"/evil"[..]));
    let odd = b"\r\n\nm-search  *\tHTTP/1.1\r\nhost:h\r\n\r\n";
    let (all, faults) = messages(&mut http, true, &[odd]);
    assert_eq!((all.len(), faults), (1, vec![]));
    assert_eq!(get(&all[0], Buffer::HttpMethod), "m-search");
}

#[test]
fn a_connection_stays_within_its_limits_and_frees_its_memory() {
    assert_eq!(HttpLimits::default().connection_bytes(), 593_216);
    let mut http = Http::default();
    http.push(false, b"HTTP/1.1 200 ok\r\n\r\n");
    http.push(false, &[b'x'; 50_000]);
    assert!(http.response.body.is_large() && !http.request.body.is_large());
    http.reset();
    assert!(!http.response.body.is_large());
    assert_eq!(http.buffer_of(false, Buffer::HttpServerBody), None);
}
