//! Runs the bodies of this crate's fuzz targets on inputs that are corrupted at random with fixed seeds, on the stable
//! toolchain.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/bodies/lab.rs"]
mod lab;

const FILE: &str = "folder = \"x\"\nlisten = \"127.0.0.1:1\"\n[calendar]\nlongest = \"2h\"\n[users.u]\nadmin = true\n\
    token = \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"\n[nodes.a]\nat = \"ssh://root@a:22\"\n\
    cores = 4\nproperties = { x = 1 }\n";
const REPLY: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: x\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
const REQUESTS: [&str; 6] = [
    "GET /v1/experiments",
    "POST /v1/reservations\n{\"nodes\": [\"a\"], \"from\": \"2999-01-01T00:00:00Z\", \"seconds\": 60}",
    "PATCH /v1/reservations/1\n{\"seconds\": 60}",
    "POST /v1/experiments\n{\"name\": \"x\", \"text\": \"title = 'x'\\n[[step]]\\nrun = 'true'\", \"files\": {\"a\": \"b\"}, \
     \"set\": [], \"nodes\": {\"local\": \"a\"}, \"repetitions\": 3}",
    "POST /v1/experiments/1/cancel",
    "GET /v1/experiments/1/results.tar.gz",
];

fn damaged(random: &mut fastrand::Rng, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..bytes.len());
        match random.u8(..4) {
            0 => bytes[at] = random.u8(..),
            1 => bytes.truncate(at.max(1)),
            2 => {
                let part = bytes[at..].to_vec();
                bytes.extend(part);
            }
            _ => bytes[at] = random.choice(*b"\"{}[],:0\n\r ").unwrap(),
        }
    }
    bytes
}

#[test]
fn randomly_damaged_requests_to_a_laboratory_get_a_reply() {
    let bench = lab::Bench::new();
    for request in REQUESTS {
        bench.request(request.as_bytes());
    }
    let mut random = fastrand::Rng::with_seed(0x1ab);
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..300 {
        let bytes = damaged(&mut random, REQUESTS[round % REQUESTS.len()]);
        seen.insert(bench.request(&bytes));
    }
    assert!(seen.contains(&400) && seen.contains(&404), "{seen:?}");
}

#[test]
fn randomly_damaged_laboratory_files_and_replies_never_panic() {
    lab::file(FILE.as_bytes());
    assert!(lab::reply(REPLY.as_bytes()));
    let mut random = fastrand::Rng::with_seed(0xfee);
    for _ in 0..1000 {
        lab::file(&damaged(&mut random, FILE));
        lab::reply(&damaged(&mut random, REPLY));
    }
}
