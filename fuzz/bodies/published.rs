//! Untrusted results, as an archive and as a folder. Whatever they contain, reading, showing, comparing and publishing
//! them terminates. Nothing outside of their folder is read or written.

use flate2::Crc;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use taut_experiment::agent::checksum;
use taut_experiment::compare::{Wanted, compare};
use taut_experiment::{Changes, Experiment, Results, evaluate, publish};
use taut_measure::LatencyHistogram;

/// The experiment of the small results.
const EXPERIMENT: &str = r#"title = "Small"
[loop]
size = [10, 20]
[plan]
repetitions = 2
[[step]]
name = "measure"
run = "echo {{ size }}"
json = true
[[table]]
name = "times"
metrics = ["measure.time_ns"]
[[figure]]
name = "by-size"
kind = "line"
x = "size"
y = "measure.time_ns"
[[figure]]
name = "all"
kind = "cdf"
[[figure]]
name = "boxes"
kind = "box"
y = "measure.time_ns"
log = "y"
[[figure]]
name = "points"
kind = "scatter"
x = "size"
y = "measure.time_ns"
log = "xy"
[[claim]]
text = "More takes longer"
value = "median('measure.time_ns', size=20) / median('measure.time_ns', size=10)"
holds = "value > 1"
"#;

/// Returns the files of small complete results, by name, without the index and the state, which [`write`] adds.
pub fn files() -> BTreeMap<String, Vec<u8>> {
    let mut latency = LatencyHistogram::new();
    latency.record_many(1000, 5);
    let mut log = Vec::new();
    let (start, long) = (
        std::time::SystemTime::UNIX_EPOCH,
        std::time::Duration::from_secs(1),
    );
    let _ = latency.write_hlog(&mut log, start, long, None);
    let mut files = BTreeMap::from([
        ("experiment.toml".to_owned(), EXPERIMENT.into()),
        (
            "nodes/0.json".to_owned(),
            br#"{"taut_version":"0.1.0","architecture":"x86_64","system":"Linux","host_name":"lab","machine":{"cpu_model":null,"caches":[]},"interrupt_affinity":{"1":"0"}}"#.to_vec(),
        ),
    ]);
    for (variant, repetition) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let run = format!("runs/v{variant}-r{repetition}");
        let record = format!(
            r#"{{"id":"v{variant}-r{repetition}","variant":{variant},"repetition":{repetition},"warm_up":false,"loops":{{"size":{size}}},"variables":{{"size":{size}}},"started":"2026-01-01T00:00:00Z","seconds":1.5,"attempt":1,"failure":null,"commands":[{{"name":"measure","node":"local","script":"echo {size}","exit_code":0,"begun_s":0.1,"seconds":0.2}}],"nodes":{{"local":"0.json"}},"metrics":{{"measure.time_ns":{time}.5}},"notes":[],"files":{{FILES}}}}"#,
            size = variant * 10,
            time = variant * 1000 + repetition,
        );
        files.insert(format!("{run}/run.json"), record.into());
        files.insert(format!("{run}/logs/measure.out"), b"10\n".to_vec());
        files.insert(format!("{run}/local/latency/latency.hlog"), log.clone());
    }
    files
}

/// Writes the files of results into a folder, with their checksums, index and state.
pub fn write(files: &BTreeMap<String, Vec<u8>>, folder: &Path) {
    for (name, text) in files {
        let path = folder.join(name);
        let _ = path.parent().map(fs::create_dir_all);
        let _ = fs::write(&path, text);
    }
    let mut index = String::new();
    for name in files.keys().filter(|name| name.ends_with("/run.json")) {
        let run = name.trim_end_matches("run.json");
        let sums: Vec<String> = files
            .keys()
            .filter_map(|file| Some((file, file.strip_prefix(run)?)))
            .filter(|(_, below)| *below != "run.json")
            .filter_map(|(file, below)| {
                Some(format!(
                    "{below:?}:\"{}\"",
                    checksum(&folder.join(file)).ok()?
                ))
            })
            .collect();
        let text = String::from_utf8_lossy(&files[name]).replace("FILES", &sums.join(","));
        let path = folder.join(name);
        let _ = fs::write(&path, &text);
        if let Ok(record) = serde_json::from_str::<serde_json::Value>(&text) {
            let line = serde_json::json!({
                "id": record["id"], "variant": record["variant"], "repetition": record["repetition"],
                "warm_up": false, "seconds": 1.0, "variables": record["loops"],
                "metrics": record["metrics"], "checksum": checksum(&path).unwrap_or_default(),
            });
            index += &format!("{line}\n");
        }
    }
    put(folder, files, "runs.jsonl", index.as_bytes());
    let text = files
        .get("experiment.toml")
        .map(|text| String::from_utf8_lossy(text));
    let plan = Experiment::parse(
        &text.unwrap_or_default(),
        "experiment.toml",
        folder,
        &Changes::default(),
    )
    .map(|experiment| experiment.fingerprint());
    let state = serde_json::json!({
        "schema": 1, "title": "Small", "name": "small", "taut_version": "0.1.0",
        "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:01:00Z",
        "command_line": "taut experiment run small.toml", "stage": "finished",
        "fingerprint": plan.unwrap_or_default(), "planned": 4, "done": 4, "failed": 0,
        "notes": [], "replicates": null,
    });
    put(folder, files, "state.json", state.to_string().as_bytes());
}

/// Writes a file, unless `files` contains one of the same name.
fn put(folder: &Path, files: &BTreeMap<String, Vec<u8>>, name: &str, text: &[u8]) {
    if !files.contains_key(name) {
        let _ = fs::write(folder.join(name), text);
    }
}

/// Packs a folder under the name `top`, with links as links.
pub fn pack(folder: &Path, archive: &Path) {
    let mut tar = tar::Builder::new(Vec::new());
    tar.follow_symlinks(false);
    let _ = tar.append_dir_all("top", folder);
    let _ = fs::write(archive, stored(&tar.into_inner().unwrap_or_default()));
}

/// Encodes a gzip stream of stored blocks (RFC 1951 section 3.2.4), as compression would take most of the time.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut crc = Crc::new();
    crc.update(bytes);
    let mut blocks = bytes.chunks(0xffff).peekable();
    while let Some(block) = blocks.next() {
        let length = block.len() as u16;
        out.push(u8::from(blocks.peek().is_none()));
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
    }
    if bytes.is_empty() {
        out.extend([1, 0, 0, 0xff, 0xff]);
    }
    out.extend(crc.sum().to_le_bytes());
    out.extend((bytes.len() as u32).to_le_bytes());
    out
}

/// Uses results in every way in which untrusted ones are used; returns the error messages. For tests.
#[allow(dead_code)]
pub fn use_all(what: &Path, out: &Path) -> Vec<String> {
    use_for(what, out, |_| true)
}

/// Uses results like [`use_all`], but only in the ways (0 to 3) that `wanted` selects.
fn use_for(what: &Path, out: &Path, wanted: impl Fn(u8) -> bool) -> Vec<String> {
    let mut told = Vec::new();
    let mut tell = |e: &dyn std::fmt::Display| told.push(e.to_string());
    let results = match Results::open(&what.display().to_string()) {
        Ok(Some(results)) => results,
        Ok(None) => return told,
        Err(e) => {
            tell(&e);
            return told;
        }
    };
    if wanted(0)
        && let Err(e) = results.experiment()
    {
        tell(&e);
    }
    if wanted(1) {
        match compare(&results.folder, &results.folder, &Wanted::default()) {
            Ok(found) => drop(found.to_string()),
            Err(e) => tell(&e),
        }
    }
    let options = publish::Options {
        folder: out.join("out"),
        partial: true,
        ..publish::Options::default()
    };
    if wanted(2)
        && let Err(e) = publish::publish(&results.folder, &options)
    {
        tell(&e);
    }
    if wanted(3)
        && let Err(e) = evaluate::evaluate(&results.folder)
    {
        tell(&e);
    }
    told
}

/// Bytes from which operations are drawn.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns a piece of the bytes; its length precedes it.
    fn piece(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.byte()?).min(self.0.len());
        let (piece, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(piece)
    }
}

/// The words that operations insert or substitute.
const WORDS: [&str; 12] = [
    "v1-r1",
    "local",
    "0.json",
    "measure",
    "size",
    "10",
    "1001.5",
    "null",
    "times",
    "by-size",
    "\"files\":{",
    "latency",
];

fn change(
    files: &mut BTreeMap<String, Vec<u8>>,
    links: &mut Vec<(String, String)>,
    from: &mut Source<'_>,
) -> Option<()> {
    let kind = from.byte()?;
    let at = usize::from(from.byte()?) % files.len().max(1);
    let name = files.keys().nth(at)?.clone();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match kind % 6 {
        // Replace bytes of a file.
        0 => {
            let place = usize::from(from.byte()?) * 7;
            let piece = from.piece()?;
            let file = files.get_mut(&name)?;
            let place = place.min(file.len());
            let end = (place + piece.len()).min(file.len());
            file.splice(place..end, piece.iter().copied());
        }
        // Replace a word of a file.
        1 => {
            let word = WORDS[usize::from(from.byte()?) % WORDS.len()];
            let with = text(from.piece()?);
            let file = files.get_mut(&name)?;
            *file = text(file).replace(word, &with).into_bytes();
        }
        // Replace a number of a run by arbitrary bits.
        2 => {
            let mut bits = [0; 8];
            let piece = from.piece()?;
            let length = piece.len().min(8);
            bits[..length].copy_from_slice(&piece[..length]);
            let number = f64::from_bits(u64::from_le_bytes(bits)).to_string();
            let file = files.get_mut(&name)?;
            *file = text(file).replace("1001.5", &number).into_bytes();
        }
        // Add a file with an arbitrary name.
        3 => {
            let more = text(from.piece()?);
            if Path::new(&more)
                .components()
                .all(|part| matches!(part, std::path::Component::Normal(_)))
            {
                files.insert(more, from.piece()?.to_vec());
            }
        }
        // Replace the file by a link to a file in the folder next to the results.
        4 => links.push((name, "../outside/file".to_owned())),
        _ => {
            files.remove(&name);
        }
    }
    Some(())
}

thread_local! {
    /// The working folder: in memory, if there is such a folder.
    static PLACE: (tempfile::TempDir, BTreeMap<String, Vec<u8>>) = {
        let memory = Path::new("/dev/shm");
        let at = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let place = tempfile::tempdir_in(at).unwrap_or_else(|e| panic!("no place to work in: {e}"));
        (place, files())
    };
}

/// Builds results from bytes and uses them in every way.
pub fn archive(bytes: &[u8]) {
    PLACE.with(|(place, small)| {
        let place = place.path();
        for name in ["in", "out", "outside"] {
            let _ = fs::remove_dir_all(place.join(name));
            let _ = fs::create_dir(place.join(name));
        }
        let _ = fs::write(place.join("outside/file"), "kept");
        let mut from = Source(bytes);
        let archive = place.join("in.tar.gz");
        let first = from.byte().unwrap_or_default();
        // Each input uses the results in one way, so that more inputs run. Publishing is slow and seldom chosen. The
        // checksum of the input selects the way: if a separate byte did, all inputs that reach more code would publish.
        let mut digest = Crc::new();
        digest.update(bytes);
        let one = match digest.sum() % 16 {
            0 => 2,
            1..6 => 0,
            6..11 => 1,
            _ => 3,
        };
        let what: PathBuf = match first % 4 {
            // Use arbitrary bytes as an archive.
            0 => {
                let _ = fs::write(&archive, [&[0x1f, 0x8b], from.0].concat());
                archive.clone()
            }
            // Use arbitrary bytes as a tar stream.
            1 => {
                let _ = fs::write(&archive, stored(from.0));
                archive.clone()
            }
            // Change the small results.
            kind => {
                let (mut files, mut links) = (small.clone(), Vec::new());
                while change(&mut files, &mut links, &mut from).is_some() {}
                write(&files, &place.join("in"));
                for (name, to) in links {
                    let path = place.join("in").join(name);
                    let _ = fs::remove_file(&path);
                    let _ = symlink(place.join("in").join(to), path);
                }
                if kind == 2 {
                    place.join("in")
                } else {
                    pack(&place.join("in"), &archive);
                    archive.clone()
                }
            }
        };
        for text in use_for(&what, &place.join("out"), |wanted| wanted == one) {
            assert!(!text.contains('\n'), "{text}");
        }
        let outside: Vec<_> = fs::read_dir(place.join("outside"))
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        assert_eq!(outside.len(), 1, "{outside:?}");
        assert_eq!(
            fs::read(place.join("outside/file")).unwrap_or_default(),
            b"kept"
        );
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name();
            assert!(
                ["in", "out", "outside", "in.tar.gz"]
                    .iter()
                    .any(|known| name == *known),
                "{name:?}"
            );
        }
    });
}
