//! The body of the fuzz target for the function `ips`; `cargo test` runs the same body over seeded noise.

use std::cell::RefCell;
use std::io::Write;
use taut_function::{Context, Function};
use taut_functions::build;
use taut_port::{Batch, PoolHandle};

/// Longest frame that is tried, bytes.
const MOST: usize = 1500;

/// Rules about packets, streams and messages.
const RULES: &str = "alert udp any any -> any any (content:\"a\"; byte_jump:1,0,relative; isdataat:2,relative; sid:1;)\n\
    alert dns any any -> any any (dns.query; content:\"a\"; nocase; sid:2;)\n\
    alert tls any any -> any any (tls.sni; content:\"a\"; ssl_state:client_hello,server_hello; sid:3;)\n\
    alert http any any -> any any (http.uri; content:\"/\"; http.header; content:\"a\"; nocase; sid:4;)\n\
    alert tcp any any -> any any (flowbits:set,seen; content:\"ab\"; depth:20; pcre:\"/a(b|c)+/\"; sid:5;)\n\
    alert icmp any any -> any any (itype:8; dsize:>3; sid:6;)\n";

thread_local! {
    /// The function and its memory, reused for all inputs: allocating it takes longer than passing a frame.
    static IPS: RefCell<(Box<dyn Function>, PoolHandle)> = RefCell::new(made());
}

fn made() -> (Box<dyn Function>, PoolHandle) {
    let mut rules = tempfile::NamedTempFile::new().expect("a file");
    rules.write_all(RULES.as_bytes()).expect("a file");
    let settings = format!(
        "rules = [\"{}\"]\nflows = 1024\nmemory = \"1 MB\"\ninner = true\nmax_time = \"1s\"\nalert_only = true\n",
        rules.path().display()
    );
    let mut ips = build("ips", settings.parse().expect("settings")).expect("a function");
    ips.prepare().expect("memory");
    (ips, PoolHandle::new(1, false).expect("memory"))
}

/// Passes frames, each after a length of two bytes. Checks that each is counted once and stays unchanged.
pub fn frames(bytes: &[u8]) -> u64 {
    IPS.with_borrow_mut(|(ips, pool)| {
        let before = counted(&**ips);
        let (mut rest, mut sent) = (bytes, 0);
        while let Some((&[high, low], behind)) = rest.split_first_chunk::<2>() {
            let len = usize::from(u16::from_be_bytes([high, low]))
                .min(behind.len())
                .min(MOST);
            let (frame, behind) = behind.split_at(len);
            rest = behind;
            let mut batch = Batch::new();
            pool.fill(&mut batch, 1, frame.len() as u16);
            batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
            let context = Context {
                to_port: 1,
                ports: 2,
                ..Context::default()
            };
            ips.process(&mut batch, &context);
            assert_eq!(batch.packets()[0].bytes(), frame);
            sent += 1;
        }
        assert_eq!(counted(&**ips), before + sent);
        sent
    })
}

fn counted(ips: &dyn Function) -> u64 {
    ips.outcomes().iter().map(|(_, count)| count).sum()
}
