//! Runs the bodies of the fuzz targets over seeded noise and damaged messages, on the stable toolchain.

#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/inspect.rs"]
mod inspect;

const SEED: u64 = 0x1175;

const HTTP: [&[u8]; 2] = [
    b"\0POST /a%2Fb/./c/../d//e?x=%41 HTTP/1.1\r\nHost: A.example:80\r\nCookie: a=1\r\nX: one\r\n two\r\n\
      Content-Length: 5\r\n\r\nhelloHEAD / HTTP/1.1\r\n\r\n\xffHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nabcde\r\n\
      0\r\nT: x\r\n\r\nHTTP/1.1 200 OK\nContent-Length: 9\n\n",
    b"\x03HTTP/1.0 404 Not found\r\nSet-Cookie: a\r\n\r\nbody\xffGET http://a.example/x/../y HTTP/1.0\n\n",
];
const DNS: &[u8] = b"\0\x22\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03com\0\0\x01\0\x01";
const TLS: &[u8] = b"\x16\x03\x01\0\x46\x01\0\0\x42\x03\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\x02\x13\x01\x01\0\0\x17\0\x0a\0\x02\0\x1d\0\0\0\x0d\0\x0b\0\0\x08a.invalid";
const FRAGMENTS: &[u8] =
    b"\0\x1c\x45\0\0\x1c\0\x01\x20\0\x40\x11\xd6\xcc\xc0\0\x02\x01\xc0\0\x02\x02abcdefgh\
    \0\x17\x45\0\0\x17\0\x01\0\x01\x40\x11\xf6\xd0\xc0\0\x02\x01\xc0\0\x02\x02end";

/// The bytes with some changed, and perhaps cut short.
fn damaged(bytes: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.usize(..4) {
        let at = random.usize(..bytes.len());
        bytes[at] = match random.u8(..3) {
            0 => random.u8(..),
            1 => bytes[random.usize(..bytes.len())],
            _ => *random.choice(b"\r\n :/%.0\xff").unwrap_or(&0),
        };
    }
    if random.u8(..4) == 0 {
        bytes.truncate(random.usize(..=bytes.len()));
    }
    bytes
}

#[test]
fn fuzz_bodies_survive_seeded_noise() {
    let mut random = fastrand::Rng::with_seed(SEED);
    for _ in 0..4000 {
        let noise: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
        for body in [
            inspect::dns,
            inspect::tls,
            inspect::http,
            inspect::stream,
            inspect::fragments,
        ] {
            body(&noise);
        }
        inspect::dns(&damaged(DNS, &mut random));
        inspect::dns(&damaged(&DNS[2..], &mut random));
        inspect::tls(&damaged(TLS, &mut random));
        for good in HTTP {
            inspect::http(&damaged(good, &mut random));
        }
        inspect::fragments(&damaged(FRAGMENTS, &mut random));
    }
}

#[test]
fn what_fuzzing_has_learnt_is_replayed() {
    corpus::replay("inspect_dns", inspect::dns);
    corpus::replay("inspect_fragments", inspect::fragments);
    corpus::replay("inspect_http", inspect::http);
    corpus::replay("inspect_stream", inspect::stream);
    corpus::replay("inspect_tls", inspect::tls);
}
