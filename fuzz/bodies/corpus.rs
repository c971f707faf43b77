//! The corpora of fuzz targets, as `cargo test` replays them on the stable toolchain: inputs that reach all code that
//! fuzzing has reached, and damaged copies.

use std::path::Path;
use std::process::Command;

/// Number of damaged copies that are tried for each input.
const DAMAGED: usize = 2;

/// Runs a target's body over the inputs in `fuzz/corpora/TARGET.tar.gz`, and over damaged copies of them. The damage is
/// the same in every run.
///
/// # Panics
/// Panics if the archive cannot be read, or if the body panics; in the second case the input is printed.
pub fn replay<T>(target: &str, body: impl Fn(&[u8]) -> T) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora");
    let archive = archive.join(format!("{target}.tar.gz"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("corpus-{target}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&archive).arg("-C").arg(&folder);
    let status = unpack.status().expect("tar");
    assert!(status.success(), "{}: {status}", archive.display());
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder")
        .map(|file| file.expect("a file").path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let inputs: Vec<Vec<u8>> = files
        .iter()
        .map(|path| std::fs::read(path).expect("an input"))
        .collect();
    assert!(!inputs.is_empty(), "{}: empty", archive.display());
    let _ = std::fs::remove_dir_all(&folder);
    let mut random = fastrand::Rng::with_seed(0xc0_4b05);
    let run = |input: &[u8]| {
        let _told = Told { target, input };
        body(input);
    };
    for input in &inputs {
        run(input);
        for _ in 0..DAMAGED {
            let other = &inputs[random.usize(..inputs.len())];
            run(&damaged(input, other, &mut random));
        }
    }
}

/// A guard that prints the input if the body panics over it.
struct Told<'a> {
    target: &'a str,
    input: &'a [u8],
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("input of {}: {:02x?}", self.target, self.input);
        }
    }
}

/// Changes, removes or inserts one to four bytes, or appends the end of another input to the beginning of this one.
fn damaged(input: &[u8], other: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if random.u8(..8) == 0 {
        bytes.truncate(random.usize(..=bytes.len()));
        bytes.extend(&other[random.usize(..=other.len())..]);
        return bytes;
    }
    for _ in 0..random.usize(1..5) {
        let at = random.usize(..=bytes.len());
        match random.u8(..4) {
            0 => bytes.insert(at, random.u8(..)),
            _ if at == bytes.len() => {}
            1 => drop(bytes.remove(at)),
            2 => bytes[at] ^= 1 << random.u8(..8),
            _ => bytes[at] = random.u8(..),
        }
    }
    bytes
}

/// Returns the factor by which the number of random inputs is multiplied: `TAUT_NOISE`, 1 by default.
#[allow(dead_code, reason = "not every crate makes noise by it")]
pub fn times() -> u64 {
    let asked = std::env::var("TAUT_NOISE").ok();
    asked.and_then(|it| it.parse().ok()).unwrap_or(1)
}
