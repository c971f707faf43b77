//! Tests of malicious results folders and archives: nothing outside them is read or written, nothing hangs, and one
//! line reports the problem.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/bodies/published.rs"]
#[allow(dead_code)]
mod published;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use taut_experiment::compare::{Wanted, compare};
use taut_experiment::folder::Folder;
use taut_experiment::{Results, evaluate, publish};

/// The files of a results folder that taut's commands read.
const READ: [&str; 6] = [
    "state.json",
    "runs.jsonl",
    "experiment.toml",
    RECORD,
    LOG,
    "runs/v1-r1/logs/measure.out",
];
const RECORD: &str = "runs/v1-r1/run.json";
const LOG: &str = "runs/v1-r1/local/latency/latency.hlog";

/// Makes results in `place/in`, after `change` has changed some of their files. The file `place/secret` must not be
/// read or changed by commands.
fn results(change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let mut files = published::files();
    change(&mut files);
    let folder = place.path().join("in");
    fs::create_dir(&folder).unwrap();
    published::write(&files, &folder);
    fs::write(place.path().join("secret"), "do not look").unwrap();
    (place, folder)
}

/// Makes a named pipe, or a device that yields endless zeros.
fn special(path: &Path, kind: FileType) -> rustix::io::Result<()> {
    mknodat(CWD, path, kind, Mode::RWXU, makedev(1, 5))
}

fn replace(files: &mut BTreeMap<String, Vec<u8>>, name: &str, word: &str, with: &str) {
    let text = String::from_utf8(files[name].clone()).unwrap();
    assert!(text.contains(word), "{name}: {text}");
    files.insert(name.to_owned(), text.replace(word, with).into_bytes());
}

fn publish_into(folder: &Path, out: PathBuf) -> Result<publish::Published, String> {
    let options = publish::Options {
        folder: out,
        ..publish::Options::default()
    };
    publish::publish(folder, &options).map_err(|e| e.to_string())
}

/// Checks that all commands that read results print one message, which contains `part`, for results that they refuse.
#[track_caller]
fn refused(place: &Path, folder: &Path, part: &str) {
    let out = place.join("out");
    fs::create_dir(&out).unwrap();
    let told = published::use_all(folder, &out);
    assert!(told.iter().any(|text| text.contains(part)), "{told:?}");
    assert!(told.iter().all(|text| !text.contains('\n')), "{told:?}");
    assert!(
        told.iter().all(|text| !text.contains("do not look")),
        "{told:?}"
    );
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    assert_eq!(
        fs::read_to_string(place.join("secret")).unwrap(),
        "do not look"
    );
}

#[test]
fn valid_results_are_displayed_compared_and_published() {
    let (place, folder) = results(|_| {});
    let told = published::use_all(&folder, place.path());
    assert!(told.is_empty(), "{told:?}");
    assert!(place.path().join("out/index.html").is_file());
    assert!(folder.join("report.html").is_file());
    let archive = place.path().join("out.tar.gz");
    let again = place.path().join("again");
    assert!(published::use_all(&archive, &again).is_empty());
}

#[test]
fn run_ids_with_paths_or_markup_are_refused() {
    for id in [
        "../../../secret",
        "/etc",
        "v1-r1/../../..",
        "v01-r1",
        "v1-r1\\u0000",
        "<script>alert(1)</script>",
        "",
    ] {
        let (place, folder) = results(|files| {
            replace(files, RECORD, r#""id":"v1-r1""#, &format!(r#""id":"{id}""#));
        });
        refused(place.path(), &folder, "no run has such a name");
    }
}

#[test]
fn a_run_record_with_a_different_run_id_is_refused() {
    let (_place, folder) = results(|_| {});
    fs::copy(folder.join("runs/v2-r1/run.json"), folder.join(RECORD)).unwrap();
    let message = Folder::open(&folder).unwrap().run("v1-r1").unwrap_err();
    assert!(message.to_string().contains("of another run"), "{message}");
}

#[test]
fn file_names_that_lead_outside_the_folder_are_refused() {
    for name in [
        "../../../secret",
        "/dev/zero",
        "a/../../../../secret",
        "a//b",
        "./a",
        "a/",
        "a\\nb",
        "",
    ] {
        let (place, folder) = results(|files| {
            replace(files, RECORD, "FILES", &format!(r#""{name}":"00""#));
        });
        refused(
            place.path(),
            &folder,
            "cannot be the name of a file in the folder",
        );
    }
    // The first word names the file of facts about a node, and the second names the node.
    for (word, with) in [
        ("0.json", "../../secret"),
        (r#"{"local""#, r#"{"../../out""#),
    ] {
        let (place, folder) = results(|files| {
            replace(files, RECORD, word, with);
            for other in ["runs/v1-r2", "runs/v2-r1", "runs/v2-r2"] {
                replace(files, &format!("{other}/run.json"), word, with);
            }
        });
        refused(place.path(), &folder, "");
        assert!(!place.path().join("out.html").exists());
    }
}

#[test]
fn a_checksum_list_names_only_plain_files_of_its_folder() {
    for (line, part) in [
        (
            "00  /dev/zero",
            "cannot be the name of a file in the folder",
        ),
        (
            "00  ../secret",
            "cannot be the name of a file in the folder",
        ),
        ("00  pipe", "not a plain file"),
        ("00  link", "a link"),
    ] {
        let (place, folder) = results(|files| {
            files.insert("SHA256SUMS".to_owned(), format!("{line}\n").into_bytes());
        });
        special(&folder.join("pipe"), FileType::Fifo).unwrap();
        symlink("/dev/zero", folder.join("link")).unwrap();
        refused(place.path(), &folder, part);
    }
}

#[test]
fn links_in_a_folder_are_not_followed() {
    for name in READ {
        let (place, folder) = results(|_| {});
        let elsewhere = place.path().join("elsewhere");
        fs::rename(folder.join(name), &elsewhere).unwrap();
        symlink(&elsewhere, folder.join(name)).unwrap();
        let out = place.path().join("out");
        let told = published::use_all(&folder, &out);
        assert!(
            told.iter().any(|text| text.contains("is a link")),
            "{name}: {told:?}"
        );
        assert!(!out.join("out").exists(), "{name}: {told:?}");
    }
    // A file with facts that is reached through a link is ignored.
    let (place, folder) = results(|_| {});
    let elsewhere = place.path().join("elsewhere");
    fs::rename(folder.join("nodes/0.json"), &elsewhere).unwrap();
    symlink(&elsewhere, folder.join("nodes/0.json")).unwrap();
    published::use_all(&folder, place.path());
    assert!(!place.path().join("out/nodes/0.json").exists());
    let (place, folder) = results(|_| {});
    fs::rename(folder.join("runs"), place.path().join("elsewhere")).unwrap();
    symlink("../elsewhere", folder.join("runs")).unwrap();
    let told = published::use_all(&folder, &place.path().join("out"));
    assert!(
        told.iter().any(|text| text.contains("is a link")),
        "{told:?}"
    );
}

#[test]
fn pipes_and_devices_in_a_folder_block_no_command() {
    for (name, kind) in READ
        .into_iter()
        .flat_map(|name| [FileType::Fifo, FileType::CharacterDevice].map(|kind| (name, kind)))
    {
        let (place, folder) = results(|_| {});
        fs::remove_file(folder.join(name)).unwrap();
        // Only root can make a device.
        if special(&folder.join(name), kind).is_err() {
            assert_eq!(kind, FileType::CharacterDevice);
            continue;
        }
        let out = place.path().join("out");
        let told = published::use_all(&folder, &out);
        // A folder without a plain `state.json` is no experiment.
        let is_named = told.iter().any(|text| text.contains("not a plain file"));
        assert!(is_named || name == "state.json", "{name}: {told:?}");
        assert!(!out.join("out").exists(), "{name}: {told:?}");
    }
}

#[test]
fn reports_are_written_inside_their_folder_and_never_through_links() {
    let (place, folder) = results(|_| {});
    let target = place.path().join("secret");
    for name in ["report.html.partial", "metrics.csv.partial", "summary.json"] {
        symlink(&target, folder.join(name)).unwrap();
    }
    evaluate::evaluate(&folder).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "do not look");
    assert!(!folder.join("summary.json").is_symlink());
    fs::create_dir(place.path().join("elsewhere")).unwrap();
    fs::remove_dir_all(folder.join("figures")).unwrap();
    symlink("../elsewhere", folder.join("figures")).unwrap();
    let message = evaluate::evaluate(&folder).unwrap_err().to_string();
    assert!(message.contains("is a link"), "{message}");
    assert_eq!(
        fs::read_dir(place.path().join("elsewhere"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn sample_folders_outside_the_run_are_refused() {
    let (place, folder) = results(|files| {
        replace(
            files,
            "experiment.toml",
            "kind = \"cdf\"",
            "kind = \"cdf\"\nsamples = \"../../../..\"",
        );
    });
    refused(place.path(), &folder, "samples");
}

#[test]
fn an_experiment_that_attaches_its_own_result_files_is_refused() {
    for from in [
        "state.json",
        "runs.jsonl",
        "runs/v1-r1/run.json",
        "experiment.toml",
        "published/state.json",
    ] {
        let (place, folder) = results(|files| {
            let text = String::from_utf8(files["experiment.toml"].clone()).unwrap();
            let text = format!("{text}\n[[file]]\nname = \"x\"\nfrom = \"{from}\"\n");
            files.insert("experiment.toml".to_owned(), text.into_bytes());
        });
        refused(place.path(), &folder, "belongs to the results");
    }
}

#[test]
fn oversized_result_files_are_refused() {
    // The files are sparse, so they take no space.
    for name in ["state.json", "runs.jsonl", "experiment.toml", RECORD] {
        let (place, folder) = results(|_| {});
        let file = fs::OpenOptions::new()
            .write(true)
            .open(folder.join(name))
            .unwrap();
        file.set_len(1 << 40).unwrap();
        let told = published::use_all(&folder, &place.path().join("out"));
        assert!(
            told.iter().any(|text| text.contains("larger than")),
            "{name}: {told:?}"
        );
    }
}

#[test]
fn names_and_values_are_escaped_in_html_pages() {
    let evil = "<script>alert(1)</script>\\\"'";
    let (place, folder) = results(|files| {
        for run in ["v1-r1", "v1-r2", "v2-r1", "v2-r2"] {
            let name = format!("runs/{run}/run.json");
            replace(
                files,
                &name,
                "measure.time_ns",
                &format!("measure.time_ns\":1,\"{evil}"),
            );
            replace(
                files,
                &name,
                "\"notes\":[]",
                &format!("\"notes\":[\"{evil}\"]"),
            );
            replace(
                files,
                &name,
                "\"started\":\"",
                &format!("\"started\":\"{evil}"),
            );
            replace(
                files,
                &name,
                "\"name\":\"measure\"",
                &format!("\"name\":\"{evil}\""),
            );
        }
        replace(files, "nodes/0.json", "\"lab\"", &format!("\"{evil}\""));
        replace(
            files,
            "nodes/0.json",
            "cpu_model\":null",
            &format!("{evil}\":\"{evil}\""),
        );
        replace(
            files,
            "experiment.toml",
            "\"Small\"",
            "'<script>alert(1)</script>'",
        );
        replace(
            files,
            "experiment.toml",
            "[10, 20]",
            "['<script>alert(1)</script>', 20]",
        );
        replace(
            files,
            "experiment.toml",
            "text = \"More takes longer\"",
            "text = '<script>alert(1)</script>'",
        );
    });
    published::use_all(&folder, place.path());
    publish_into(&folder, place.path().join("page")).unwrap();
    let found = compare(&folder, &folder, &Wanted::default()).unwrap();
    taut_experiment::write_comparison(&found, &place.path().join("comparison")).unwrap();
    let mut folders = vec![place.path().to_owned()];
    let mut pages = 0;
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|end| end == "html" || end == "svg")
            {
                let text = fs::read_to_string(&path).unwrap();
                assert!(!text.contains("<script>alert"), "{}", path.display());
                pages += 1;
            }
        }
    }
    assert!(pages > 10, "{pages}");
}

#[test]
fn an_archive_with_a_symbolic_link_is_refused_completely() {
    let (place, folder) = results(|_| {});
    symlink("/etc", folder.join("etc")).unwrap();
    let archive = place.path().join("evil.tar.gz");
    published::pack(&folder, &archive);
    let message = Results::open(&archive.display().to_string()).unwrap_err();
    assert!(
        message.to_string().contains("neither a file nor a folder"),
        "{message}"
    );
}
