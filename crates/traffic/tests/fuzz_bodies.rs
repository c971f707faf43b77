//! Runs the body of this crate's fuzz target with seeded corrupt inputs, on the stable toolchain.

#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/damage.rs"]
mod damage;
#[path = "../../../fuzz/bodies/traffic.rs"]
mod traffic;

const WHOLE: &str = r#"
[[stream]]
name = "voice"
rate = "50k"
size = "64-1518 random"
pattern = "burst(32, 10us)"
priority = 1
dst_ip = "10.0.0.1-10.0.255.254 random"
src_port = "1024-2048 zipf(1.1)"

[[stream]]
name = "background"
size = "imix"
share = 0.5
protocol = "gtpu"
teid = "1-1000"
vlan = 7
"#;

#[test]
fn stream_shares_of_extreme_size_do_not_panic() {
    for share in ["1e308", "1e-320"] {
        let stream = format!("[[stream]]\nname = \"a\"\nshare = {share}\n");
        traffic::file(format!("{stream}{}", stream.replace("\"a\"", "\"b\"")).as_bytes());
    }
}

#[test]
fn randomly_damaged_traffic_files_never_panic() {
    let mut random = fastrand::Rng::with_seed(0x7AFF);
    for _ in 0..8_000 {
        traffic::file(&damage::damaged(WHOLE, &mut random));
    }
}

#[test]
fn the_fuzzing_corpus_replays_without_panics() {
    corpus::replay("traffic_file", traffic::file);
}
