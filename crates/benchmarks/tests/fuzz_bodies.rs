//! Runs the bodies of this crate's fuzz targets with seeded random inputs, on the stable toolchain.

#[path = "../../../fuzz/bodies/p4runtime.rs"]
mod p4runtime;

/// Texts of which descriptions of pipelines are made.
const WORDS: [&str; 17] = [
    "tables {",
    "}",
    "preamble {",
    "id: 0x7 ",
    "name: \"a\\x4",
    "\"",
    "match_fields {",
    "bitwidth: -9 ",
    "match_type: LPM ",
    "type_info { structs { key: 'k' value {",
    "direct_resource_ids: [1,2",
    "]",
    "# \n",
    "<>;",
    "tables { size: 1 } ",
    "tables { match_fields < bitwidth: 9 > } ",
    "actions: { preamble { id: 1 } } ",
];

/// Returns a frame of a kind that HTTP/2 has, with random content of few values.
fn frame(random: &mut fastrand::Rng) -> Vec<u8> {
    let length = random.u8(0..24);
    let flags = [0, 1, 4, 5, 8, 0x2c][random.usize(..6)];
    let mut bytes = vec![0, 0, length, random.u8(0..10), flags, 0, 0, 0, 1];
    bytes.extend((0..length).map(|_| match random.u8(0..4) {
        0 => 0,
        1 => random.u8(0..9),
        2 => 0x88,
        _ => random.u8(..),
    }));
    bytes
}

#[test]
fn random_frames_of_a_server_never_panic() {
    let mut random = fastrand::Rng::with_seed(0x0004_9559);
    let mut events = 0;
    for _ in 0..4_000 {
        let mut bytes: Vec<u8> = (0..random.usize(1..9))
            .flat_map(|_| frame(&mut random))
            .collect();
        if random.bool() {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        events += p4runtime::heard(&bytes)[0];
    }
    assert!(events > 1_000, "{events}");
}

#[test]
fn random_descriptions_of_pipelines_never_panic() {
    let mut random = fastrand::Rng::with_seed(0x0041_f000);
    let mut tables = 0;
    for _ in 0..4_000 {
        let words = (0..random.usize(1..9)).map(|_| WORDS[random.usize(..WORDS.len())]);
        tables += p4runtime::heard(words.collect::<String>().as_bytes())[1];
        let noise: Vec<u8> = (0..random.usize(1..40)).map(|_| random.u8(..)).collect();
        p4runtime::heard(&noise);
    }
    assert!(tables > 0);
}
