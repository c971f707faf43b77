//! Published experiments: they are published, unpacked, repeated and compared; with secrets, pseudonyms, and malicious
//! archives.

use crate::support::program::{Finished, Program};
use crate::support::{alone, scratch, taut};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const TINY: &str = r#"
title = "Tiny"
secrets = []
[variables]
address = "10.7.0.1"
[loop]
size = [10, 20]
[plan]
repetitions = 4
[[step]]
name = "measure"
run = "echo '{\"time_ns\": '$(( {{ size }} * FACTOR + {{ repetition }} ))'}'; echo {{ address }} > address.txt; printf '\\000\\001' > raw.bin; MORE"
json = true
[[table]]
name = "times"
metrics = ["measure.time_ns"]
[[figure]]
name = "by-size"
kind = "line"
x = "size"
y = "measure.time_ns"
[[claim]]
text = "Twice the size takes twice the time"
published = "2.0"
value = "median('measure.time_ns', size=20) / median('measure.time_ns', size=10)"
holds = "value > 1.8 and value < 2.2"
"#;

/// Writes the experiment [`TINY`] to `name`. Its step reports a time of `factor` per unit of size, and runs the shell
/// commands `more` as well.
fn write(dir: &Path, name: &str, factor: &str, more: &str) {
    let text = TINY.replace("FACTOR", factor).replace("MORE", more);
    fs::write(dir.join(name), text).unwrap();
}

/// Runs `taut experiment ...` in `dir`, once no other program's experiment uses this machine.
fn experiment(dir: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let mut command: Command = taut(&["experiment"]);
        command.args(arguments).current_dir(dir);
        command.envs(environment.iter().copied());
        let finished = Program::start(&mut command).finish_within(Duration::from_secs(120));
        let busy = finished
            .stderr
            .contains("another experiment runs on this machine");
        if !busy || Instant::now() > deadline {
            return finished;
        }
        for argument in arguments.windows(2).filter(|pair| pair[0] == "--out") {
            let _ = fs::remove_dir_all(dir.join(argument[1]));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn well(dir: &Path, arguments: &[&str]) -> Finished {
    experiment(dir, arguments, &[]).success()
}

#[track_caller]
fn refused(finished: &Finished, code: i32, why: &str) {
    assert_eq!(finished.code(), Some(code), "{finished:?}");
    assert!(finished.stderr.contains(why), "{finished:?}");
}

/// Returns all files below a folder with their contents.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

#[test]
fn a_published_artifact_can_be_unpacked_repeated_and_compared() {
    let _turn = alone();
    let place = scratch();
    let dir = place.path();
    write(dir, "tiny.toml", "100", "true");
    well(dir, &["run", "tiny.toml", "--out", "r1"]);
    well(
        dir,
        &[
            "publish",
            "r1",
            "--out",
            "tiny",
            "--license",
            "cc-by-4.0",
            "--author",
            "Lovelace, Ada (0000-0002-1825-0097)",
        ],
    );

    // Every file that a page names exists, and nothing is loaded from elsewhere.
    let published = dir.join("tiny");
    for (name, text) in files(&published)
        .into_iter()
        .filter(|(name, _)| name.ends_with(".html"))
    {
        let text = String::from_utf8(text).unwrap();
        assert!(
            !text.contains("src=\"http") && !text.contains("<link"),
            "{name}"
        );
        for target in text
            .split("href=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
        {
            let path = published.join(&name).parent().unwrap().join(target);
            assert!(
                target.starts_with('#') || path.exists(),
                "{name} names {target}"
            );
        }
    }
    for page in [
        "index.html",
        "setup.html",
        "node-local.html",
        "runs/v1-r1/index.html",
        "figures/by-size.html",
        "tables/times.html",
    ] {
        assert!(published.join(page).is_file(), "{page}");
    }
    let sums = Command::new("sha256sum")
        .args(["-c", "--quiet", "SHA256SUMS"])
        .current_dir(&published)
        .status()
        .unwrap();
    assert!(sums.success());
    the_crate_is_well_formed(&published);
    the_validator_accepts(&published);

    // The archive alone is run again in another folder.
    let elsewhere = dir.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(dir.join("tiny.tar.gz"), elsewhere.join("tiny.tar.gz")).unwrap();
    let check = |dir: &Path, what: &str| well(dir, &["check", what, "--json"]).stdout;
    assert_eq!(check(dir, "tiny.toml"), check(&elsewhere, "tiny.tar.gz"));
    let changed = ["run", "tiny.tar.gz", "--repetitions", "2", "--out", "r2"];
    let changed = experiment(&elsewhere, &changed, &[]);
    refused(
        &changed,
        2,
        "published results are replicated without changes",
    );
    let again = well(&elsewhere, &["run", "tiny.tar.gz", "--out", "r2"]);
    assert!(
        again.stdout.contains("Repeated: 1 of 1 claims"),
        "{again:?}"
    );
    let page = fs::read_to_string(elsewhere.join("r2/report.html")).unwrap();
    assert!(page.contains("Repeated: 1 of 1 claims"));
    // The repeated experiment is shown without the archive, and can itself be repeated.
    fs::remove_file(elsewhere.join("tiny.tar.gz")).unwrap();
    assert!(
        well(&elsewhere, &["show", "r2"])
            .stdout
            .contains("Repeated")
    );
    well(&elsewhere, &["publish", "r2", "--out", "twice"]);
    let third = well(&elsewhere, &["run", "twice", "--out", "r3"]);
    assert!(third.stdout.contains("Repeated"), "{third:?}");

    // The same experiment on another processor counts as a replication.
    for entry in fs::read_dir(elsewhere.join("r2/published/nodes")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(
            &path,
            text.replacen("\"architecture\": \"", "\"architecture\": \"other-", 1),
        )
        .unwrap();
    }
    let shown = well(&elsewhere, &["show", "r2"]);
    assert!(shown.stdout.contains("Replicated: 1 of 1 claims come out as in tiny.tar.gz, on other machines (1 facts differ)"), "{shown:?}");

    let compared = well(dir, &["compare", "elsewhere/twice.tar.gz", "tiny"]);
    assert!(
        compared
            .stdout
            .contains("Same plan, commands, versions and machines."),
        "{compared:?}"
    );
}

fn the_crate_is_well_formed(published: &Path) {
    let text = fs::read_to_string(published.join("ro-crate-metadata.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        document["@context"],
        "https://w3id.org/ro/crate/1.3/context"
    );
    let graph = document["@graph"].as_array().unwrap();
    let find = |id: &str| graph.iter().find(|entity| entity["@id"] == id);
    let descriptor = find("ro-crate-metadata.json").unwrap();
    assert_eq!(descriptor["about"]["@id"], "./");
    assert_eq!(
        descriptor["conformsTo"]["@id"],
        "https://w3id.org/ro/crate/1.3"
    );
    let root = find("./").unwrap();
    for key in ["name", "description", "datePublished", "license"] {
        assert!(!root[key].is_null(), "{key}");
    }
    let parts = root["hasPart"].as_array().unwrap();
    assert!(parts.len() > 10);
    for part in parts {
        let id = part["@id"].as_str().unwrap();
        assert!(find(id).is_some() && published.join(id).exists(), "{id}");
    }
}

/// Validates the metadata with the validator of RO-Crate, all recommendations included.
fn the_validator_accepts(published: &Path) {
    let Some(python) = std::env::var_os("TAUT_RO_CRATE") else {
        return println!(
            "skipped: needs TAUT_RO_CRATE, the Python of a venv with roc-validator, and rocrate without its dependencies"
        );
    };
    let mut command = Command::new(python);
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/ro_crate_validator.py"
    ));
    command.arg(published);
    let valid = Program::start(&mut command).finish_within(Duration::from_secs(120));
    assert_eq!(valid.code(), Some(0), "{valid:?}");
}

#[test]
fn deposits_need_a_token_an_author_and_a_service() {
    let place = scratch();
    let dir = place.path();
    write(dir, "tiny.toml", "100", "true");
    well(dir, &["run", "tiny.toml", "--out", "r1"]);
    let publish = ["publish", "r1", "--out", "tiny", "--to"];
    let none = [&publish[..], &["zenodo"]].concat();
    let finished = experiment(dir, &none, &[]);
    refused(&finished, 2, "no token for --to: put it into a file");
    assert!(!dir.join("tiny").exists());
    let anonymous = [&publish[..], &["http://127.0.0.1:9"]].concat();
    let token = [("ZENODO_TOKEN", "secret-0123456789")];
    let finished = experiment(dir, &anonymous, &token);
    refused(&finished, 2, "archives need an author");
    // The archive is there, so the next command only deposits it.
    assert!(dir.join("tiny.tar.gz").exists());
    let repository = [&publish[..], &["github:o/r", "--json"]].concat();
    let token = [
        ("GITHUB_TOKEN", "secret-0123456789"),
        ("GITHUB_API_URL", "http://127.0.0.1:9"),
    ];
    let finished = experiment(dir, &repository, &token);
    refused(&finished, 3, "cannot be reached");
    assert!(
        !finished.stderr.contains("secret-0123456789"),
        "{finished:?}"
    );
}

#[test]
fn comparisons_report_differing_verdicts_and_enforce_limits() {
    let _turn = alone();
    let place = scratch();
    let dir = place.path();
    // The result depends on the environment of the machine.
    write(dir, "tiny.toml", "${SLOPE:-100} + ${BASE:-0}", "true");
    well(dir, &["run", "tiny.toml", "--out", "r1"]);
    well(dir, &["publish", "r1", "--out", "tiny"]);
    let other = experiment(dir, &["run", "tiny", "--out", "r2"], &[("BASE", "9000")]).success();
    assert!(
        other
            .stdout
            .contains("Not replicated: 1 of 1 claims come out otherwise than in tiny"),
        "{other:?}"
    );

    let compared = experiment(
        dir,
        &[
            "compare",
            "r1",
            "r2",
            "--worse",
            "measure.time_ns 10%",
            "--out",
            "c",
        ],
        &[],
    );
    refused(&compared, 1, "2 of 2 limits exceeded");
    assert!(
        fs::read_to_string(dir.join("c/comparison.html"))
            .unwrap()
            .contains("<svg")
    );
    let json: serde_json::Value =
        serde_json::from_str(&well(dir, &["compare", "r1", "r2", "--json"]).stdout).unwrap();
    assert_eq!(json["metrics"].as_array().unwrap().len(), 2);
    assert_eq!(json["metrics"][0]["cliffs_delta"], 1.0);
    // The check passes with the two results exchanged, and with a limit that allows the change.
    well(
        dir,
        &["compare", "r2", "r1", "--worse", "measure.time_ns 10%"],
    );
    well(
        dir,
        &["compare", "r1", "r2", "--worse", "measure.time_ns 2000%"],
    );
    well(
        dir,
        &["compare", "r1", "r2", "--worse", "measure.time_ns -10%"],
    );
    refused(
        &experiment(
            dir,
            &["compare", "r1", "r2", "--worse", "measure.time 10%"],
            &[],
        ),
        2,
        "did you mean `measure.time_ns`?",
    );
    refused(
        &experiment(dir, &["compare", "r1", "tiny.toml"], &[]),
        2,
        "contains no results to compare; expected the folder of taut experiment run or taut demo",
    );

    // A run with a damaged file is left out of the comparison.
    fs::write(dir.join("r2/runs/v1-r2/local/address.txt"), "other").unwrap();
    let compared = well(dir, &["compare", "r1", "r2"]);
    assert!(
        compared.stdout.contains("B: run v1-r2 is left out")
            && compared.stdout.contains("address.txt"),
        "{compared:?}"
    );
    let publish = experiment(dir, &["publish", "r2", "--out", "damaged"], &[]);
    refused(&publish, 2, "address.txt");
    assert!(!dir.join("damaged").exists() && !dir.join("damaged.partial").exists());
}

#[test]
fn damaged_and_altered_archives_are_refused() {
    let _turn = alone();
    let place = scratch();
    let dir = place.path();
    write(dir, "tiny.toml", "100", "true");
    well(dir, &["run", "tiny.toml", "--out", "r1"]);
    well(dir, &["publish", "r1", "--out", "tiny"]);
    refused(
        &experiment(dir, &["publish", "r1", "--out", "tiny"], &[]),
        2,
        "it exists already",
    );

    let whole = fs::read(dir.join("tiny.tar.gz")).unwrap();
    fs::write(dir.join("cut.tar.gz"), &whole[..whole.len() / 2]).unwrap();
    refused(
        &experiment(dir, &["run", "cut.tar.gz", "--out", "x"], &[]),
        2,
        "the archive is damaged",
    );
    fs::write(dir.join("noise.tar.gz"), [&whole[..4], &[7; 100]].concat()).unwrap();
    refused(
        &experiment(dir, &["run", "noise.tar.gz", "--out", "x"], &[]),
        2,
        "the archive is damaged",
    );

    let record = dir.join("tiny/runs/v1-r1/run.json");
    let before = fs::read_to_string(&record).unwrap();
    fs::write(&record, before.replace("1001", "1002")).unwrap();
    refused(
        &experiment(dir, &["run", "tiny", "--out", "x"], &[]),
        2,
        "changed since it was published",
    );
    fs::write(&record, before).unwrap();
    fs::write(dir.join("tiny/more.txt"), "").unwrap();
    refused(
        &experiment(dir, &["run", "tiny", "--out", "x"], &[]),
        2,
        "differs from what was published",
    );
    fs::remove_file(dir.join("tiny/more.txt")).unwrap();
    // The test changes the plan in a results folder, which unlike a published one has no list of checksums.
    let text = fs::read_to_string(dir.join("r1/experiment.toml")).unwrap();
    fs::write(
        dir.join("r1/experiment.toml"),
        text.replace("[10, 20]", "[10, 30]"),
    )
    .unwrap();
    refused(
        &experiment(dir, &["run", "r1", "--out", "x"], &[]),
        2,
        "another plan",
    );
    assert!(!dir.join("x").exists());
    refused(
        &experiment(dir, &["resume", "tiny"], &[]),
        2,
        "published results cannot be resumed",
    );
}

#[test]
fn unfinished_experiments_are_published_only_on_request() {
    let _turn = alone();
    let place = scratch();
    let dir = place.path();
    write(dir, "tiny.toml", "100", "test {{ run }} != v2-r3");
    refused(
        &experiment(dir, &["run", "tiny.toml", "--out", "r1"], &[]),
        1,
        "1 of 8 runs are missing",
    );
    refused(
        &experiment(dir, &["publish", "r1", "--out", "tiny"], &[]),
        2,
        "--partial",
    );
    assert!(!dir.join("tiny").exists());
    well(dir, &["publish", "r1", "--out", "tiny", "--partial"]);
    for (name, text) in files(&dir.join("tiny"))
        .into_iter()
        .filter(|(name, _)| name.ends_with(".html"))
    {
        assert!(
            holds(&text, "Published in part: 7 of 8 runs are here."),
            "{name}"
        );
    }
}

#[test]
fn results_contain_no_secrets() {
    let _turn = alone();
    let place = scratch();
    let dir = place.path();
    // The secret is printed complete, in two pieces (apart in one run), on both outputs, into a file, and at the end of
    // a failed run.
    let more = "test \\\"$(printenv TOKEN | wc -c)\\\" = 14 || exit 3; printenv TOKEN; printf hunter2-; test {{ run }} != v1-r1 || sleep 0.2; echo pass1; printenv TOKEN >&2; printenv TOKEN > kept.txt; test {{ run }} != v1-r2";
    write(dir, "tiny.toml", "100", more);
    let text = fs::read_to_string(dir.join("tiny.toml")).unwrap();
    fs::write(
        dir.join("tiny.toml"),
        text.replace("secrets = []", "secrets = [\"TOKEN\"]"),
    )
    .unwrap();
    refused(&experiment(dir, &["check", "tiny.toml"], &[]), 3, "missing");
    refused(
        &experiment(dir, &["run", "tiny.toml", "--out", "r1"], &[]),
        2,
        "the secret $TOKEN is not set",
    );
    refused(
        &experiment(
            dir,
            &["run", "tiny.toml", "--out", "r1"],
            &[("TOKEN", "abc")],
        ),
        2,
        "shorter than 4",
    );
    refused(
        &experiment(
            dir,
            &["run", "tiny.toml", "--out", "r1"],
            &[("TOKEN", "measure")],
        ),
        2,
        "is in the file",
    );
    assert!(!dir.join("r1").exists());
    let token = [("TOKEN", "hunter2-pass1")];
    let finished = experiment(dir, &["run", "tiny.toml", "--out", "r1"], &token);
    refused(&finished, 1, "1 of 8 runs are missing");
    assert!(!finished.stderr.contains("hunter2-pass1"), "{finished:?}");
    for (name, bytes) in files(&dir.join("r1")) {
        assert!(!holds(&bytes, "hunter2-pass1"), "{name}");
    }
    let log = fs::read_to_string(dir.join("r1/runs/v1-r1/logs/measure.out")).unwrap();
    assert_eq!(log.matches("[secret]").count(), 2, "{log}");
    assert_eq!(
        fs::read_to_string(dir.join("r1/runs/v1-r1/local/kept.txt"))
            .unwrap()
            .trim(),
        "[secret]"
    );

    let published = experiment(
        dir,
        &["publish", "r1", "--out", "tiny", "--partial"],
        &token,
    )
    .success();
    assert!(
        published.stdout.contains("have no licence"),
        "{published:?}"
    );
    assert!(
        fs::read_to_string(dir.join("tiny/REPLICATE.md"))
            .unwrap()
            .contains("Set `TOKEN`")
    );
    // A secret that entered the results by another path is found at the end.
    let refusal = experiment(
        dir,
        &["publish", "r1", "--out", "other", "--partial"],
        &[("TOKEN", "Twice the size")],
    );
    refused(&refusal, 2, "the value of a secret is in this file");
    assert!(!dir.join("other").exists() && !dir.join("other.tar.gz").exists());
}

#[test]
fn pseudonyms_replace_user_names_host_names_and_addresses() {
    let _turn = alone();
    let place = scratch();
    let dir = place.path();
    let more = "echo ada@$(cat /proc/sys/kernel/hostname) 10.7.0.9 3c:52:82:12:34:56 fd00:1::7 /home/ada/x";
    write(dir, "tiny.toml", "100", more);
    well(dir, &["run", "tiny.toml", "--out", "r1"]);
    let published = experiment(
        dir,
        &["publish", "r1", "--out", "tiny", "--pseudonyms"],
        &[("USER", "ada")],
    )
    .success();
    assert!(
        published
            .stdout
            .contains("replaced: host names by host-1 and so on (1)")
            && published
                .stdout
                .contains("skipped: runs/v1-r1/local/raw.bin"),
        "{published:?}"
    );
    for (name, bytes) in files(&dir.join("tiny"))
        .into_iter()
        .filter(|(name, _)| !name.ends_with(".parquet"))
    {
        for private in ["10.7.0.", "3c:52:82", "fd00:1", "ada@", "/home/ada"] {
            assert!(!holds(&bytes, private), "{name} holds {private}");
        }
    }
    let log = fs::read_to_string(dir.join("tiny/runs/v1-r1/logs/measure.out")).unwrap();
    assert!(
        log.contains("user-1@host-1 192.0.2.9 00:00:5e:00:53:01 2001:db8:0:1::1 /home/user-1/x"),
        "{log}"
    );
    let address = fs::read_to_string(dir.join("tiny/runs/v1-r1/local/address.txt")).unwrap();
    assert_eq!(address.trim(), "192.0.2.1");
    assert!(!dir.join("tiny/runs/v1-r1/local/raw.bin").exists());
    // The archive is still a complete artifact.
    let again = well(dir, &["run", "tiny.tar.gz", "--out", "r2"]);
    assert!(
        again.stdout.contains("Repeated: 1 of 1 claims"),
        "{again:?}"
    );
    well(
        dir,
        &[
            "publish",
            "r1",
            "--out",
            "kept",
            "--pseudonyms",
            "--keep-captures",
        ],
    );
    assert!(dir.join("kept/runs/v1-r1/local/raw.bin").is_file());
}

#[test]
fn published_perturbations_are_made_again_in_another_folder() {
    let _turn = alone();
    let place = scratch();
    let dir = place.path();
    // The claim fails where sizes are halved, as the step adds 5.
    write(dir, "tiny.toml", "1 + 5", "true");
    let options = ["--within", "60s", "--repetitions", "2", "--out", "r1"];
    let made = well(dir, &[&["robust", "tiny.toml"][..], &options].concat());
    assert!(made.stderr.contains("size × 2"), "{made:?}");
    assert!(made.stdout.contains("Of 1 claim"), "{made:?}");
    let table = fs::read_to_string(dir.join("r1/robustness.md")).unwrap();
    assert!(table.contains("| size × 0.5 |"), "{table}");
    well(dir, &["publish", "r1", "--out", "tiny"]);
    assert!(dir.join("tiny/robustness.json").is_file());
    let again = well(dir, &["run", "tiny.tar.gz", "--out", "r2"]);
    assert!(again.stdout.contains("outcomes are the same"), "{again:?}");
    let page = fs::read_to_string(dir.join("r2/report.html")).unwrap();
    assert!(page.contains("id=\"robustness\""), "{page}");
    let archive = experiment(dir, &["robust", "tiny.tar.gz"], &[]);
    refused(&archive, 2, "run them again with: taut experiment run");
}
