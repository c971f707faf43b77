//! The service of a laboratory, over HTTP, with a shell script in the place of taut. The script makes a results folder,
//! waits for a file, and ends as the file's name says.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use taut_live::http::Server;
use taut_testbed::api::{Experiment, ExtendRequest, ReserveRequest, State, SubmitRequest};
use taut_testbed::{Client, ClientError, Lab, LabFile, MOST_BODY_BYTES, Schedule, TokenHash};

const PATIENCE: Duration = Duration::from_secs(60);
const USERS: [&str; 3] = ["alice", "bob", "root"];

/// The script in the place of taut: `experiment run FILE --out DIR` or `experiment resume DIR`.
const PROGRAM: &str = r#"#!/usr/bin/env -S --default-signal=INT sh
case $2 in
run) out=$5 ;;
*) out=$3 ;;
esac
state() {
    cat >"$out/new" <<END
{"schema": 1, "title": "t", "name": "t", "taut_version": "0", "started": "2026-01-01T00:00:00Z", "ended": null,
"command_line": "t", "stage": "$1", "fingerprint": "f", "planned": 2, "done": $2, "failed": 0, "notes": [], "replicates": null}
END
    mv "$out/new" "$out/state.json"
}
# Only one of the processes that see the file can move it.
takes() {
    [ -e "$0.$1" ] && mv "$0.$1" "$out/taken" 2>/dev/null
}
if [ -e "$0.early" ]; then
    echo 'taut: node dut: no route to host' >&2
    exit 3
fi
mkdir -p "$out/runs/v1-r2.partial"
echo x >"$out/runs/v1-r2.partial/y"
echo "$*" >>"$out/calls"
trap 'state interrupted 1; exit 130' INT
state running 1
echo working
while :; do
    if takes die; then kill -9 $$; fi
    if takes go; then state finished 2; exit 0; fi
    if takes fail; then state incomplete 1; echo 'taut: 1 of 2 runs are missing' >&2; exit 1; fi
    sleep 0.02
done
"#;

/// A folder with a laboratory, in which a service can be started more than once.
struct Place {
    folder: tempfile::TempDir,
}

/// A running service of a laboratory.
struct Running {
    server: Server,
    _schedule: Schedule,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    /// Creates a file named `word`; one running process of the script takes it, and ends as the name says.
    fn say(&self, word: &str) {
        fs::write(self.folder.path().join(format!("program.{word}")), "").unwrap();
    }

    fn unsay(&self, word: &str) {
        fs::remove_file(self.folder.path().join(format!("program.{word}"))).unwrap();
    }

    fn start(&self) -> Running {
        self.start_in(&self.folder.path().join("state"), "")
    }

    fn start_in(&self, state: &Path, more: &str) -> Running {
        let lab = Arc::new(self.lab(state, more));
        let schedule = Schedule::start(&lab, |e| eprintln!("schedule: {e}")).unwrap();
        Running {
            server: taut_testbed::serve(&lab).unwrap(),
            _schedule: schedule,
        }
    }

    fn lab(&self, state: &Path, more: &str) -> Lab {
        let mut text = format!("listen = \"127.0.0.1:0\"\nfolder = {state:?}\n{more}\n");
        for user in USERS {
            let hash = TokenHash::of(user);
            let admin = user == "root";
            text += &format!(
                "[users.{user}]\ntoken = \"{}\"\nadmin = {admin}\n",
                hash.as_str()
            );
        }
        for (node, at) in [("a", "local"), ("b", "ssh://b"), ("c", "ssh://c")] {
            text += &format!("[nodes.{node}]\nat = \"{at}\"\n");
        }
        let file = LabFile::parse(&text, "lab.toml").unwrap();
        Lab::open(file, &self.folder.path().join("program")).unwrap()
    }
}

impl Running {
    fn client(&self, user: &str) -> Client {
        let url = format!("http://{}", self.server.address());
        Client::new(url.parse().unwrap(), user)
    }

    /// Sends bytes to the service, and returns all bytes of its reply.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.server.address()).unwrap();
        // The service may close the connection before it has received everything.
        let _ = stream.write_all(bytes);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|it| (*it).to_owned()).collect()
}

fn wish(nodes: &[&str], seconds: u64) -> ReserveRequest {
    ReserveRequest {
        nodes: set(nodes),
        seconds: Some(seconds),
        ..ReserveRequest::default()
    }
}

/// Returns the time `seconds` seconds from now, as text.
fn in_seconds(seconds: u64) -> String {
    let at = std::time::SystemTime::now() + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(at).to_string()
}

fn experiment(node: &str) -> SubmitRequest {
    SubmitRequest {
        name: "one".to_owned(),
        text: "title = \"One\"\n[nodes.dut]\nat = \"local\"\n[plan]\nlimit = \"20s\"\n[[step]]\nrun = \"true\"\n"
            .to_owned(),
        nodes: BTreeMap::from([("dut".to_owned(), node.to_owned())]),
        ..SubmitRequest::default()
    }
}

#[track_caller]
fn refused<T>(result: Result<T, ClientError>, code: u16, part: &str) {
    match result.err() {
        Some(ClientError::Refused { status, reason }) => {
            assert_eq!(status, code, "{reason}");
            assert!(reason.contains(part) && !reason.contains('\n'), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

/// Waits until an experiment has the given state and, if `done` is given, this number of complete runs.
#[track_caller]
fn wait(client: &Client, id: u64, state: State, done: Option<u64>) -> Experiment {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = client.experiment(id).unwrap();
        let runs = now.progress.as_ref().map(|it| it.done);
        if now.state == state && (done.is_none() || runs == done) {
            return now;
        }
        assert!(Instant::now() < deadline, "{now:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn reservations_are_made_extended_refused_and_released() {
    let place = Place::new();
    let service = place.start();
    let (alice, bob, root) = (
        service.client("alice"),
        service.client("bob"),
        service.client("root"),
    );
    let one = alice.reserve(&wish(&["a", "b"], 3600)).unwrap();
    assert_eq!((one.id.as_str(), one.user.as_str()), ("1", "alice"));
    let told = format!(
        "alice has b from {} until {} (reservation 1)",
        one.from, one.until
    );
    refused(bob.reserve(&wish(&["b", "c"], 60)), 409, &told);
    let later = ReserveRequest {
        from: Some(one.until.clone()),
        ..wish(&["b"], 3600)
    };
    let two = bob.reserve(&later).unwrap();
    let by = |seconds| ExtendRequest {
        seconds: Some(seconds),
        until: None,
    };
    refused(alice.extend("1", &by(60)), 409, "bob has b from");
    refused(
        bob.extend("1", &by(60)),
        403,
        "reservation 1 belongs to alice",
    );
    refused(bob.release("1"), 403, "belongs to alice");
    assert!(root.extend(&two.id, &by(60)).unwrap().until > two.until);
    bob.release(&two.id).unwrap();
    refused(
        bob.release(&two.id),
        404,
        "no current or future reservation 2",
    );
    let longer = alice.extend("1", &by(60)).unwrap();
    assert!(longer.until > one.until && longer.from == one.from);
    assert_eq!(bob.reservations().unwrap(), [longer]);
    let nodes = bob.nodes().unwrap();
    let seen: Vec<_> = nodes.iter().map(|it| it.user.as_deref()).collect();
    assert_eq!(seen, [Some("alice"), Some("alice"), None]);
    let at = |from: &str, until: &str| ReserveRequest {
        from: Some(from.to_owned()),
        until: Some(until.to_owned()),
        ..ReserveRequest::default()
    };
    let nodes = set(&["a"]);
    for (wish, part) in [
        (wish(&[], 1), "at least one node"),
        (wish(&["a"], 25 * 3600), "at most 1day here"),
        (wish(&["a"], 0), "not after the begin"),
        (
            ReserveRequest {
                nodes: nodes.clone(),
                ..ReserveRequest::default()
            },
            "either `until` or `seconds`",
        ),
        (
            ReserveRequest {
                nodes: nodes.clone(),
                ..at("soon", "later")
            },
            "expected a time in UTC",
        ),
        (
            ReserveRequest {
                nodes: nodes.clone(),
                ..at("2020-01-01 00:00", "2020-01-01 01:00")
            },
            "in the past",
        ),
        (
            ReserveRequest {
                nodes,
                ..at("2999-01-01 00:00", "2999-01-01 01:00")
            },
            "at most 30days from now",
        ),
    ] {
        refused(alice.reserve(&wish), 400, part);
    }
    refused(alice.reserve(&wish(&["d"], 1)), 404, "no node `d`");
}

#[test]
fn one_of_many_clients_gets_a_slot_that_all_request() {
    const CLIENTS: usize = 8;
    let place = Place::new();
    let service = place.start();
    for round in 0..5 {
        let begin = Barrier::new(CLIENTS);
        let from = in_seconds(3600 * (round + 1));
        let won: Vec<bool> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let client = service.client(USERS[number % 2]);
                    let (begin, from) = (&begin, &from);
                    scope.spawn(move || {
                        let wish = ReserveRequest {
                            from: Some(from.clone()),
                            ..wish(&["a", "b"], 1800)
                        };
                        begin.wait();
                        match client.reserve(&wish) {
                            Ok(_) => true,
                            Err(ClientError::Refused { status: 409, .. }) => false,
                            Err(e) => panic!("{e}"),
                        }
                    })
                })
                .collect();
            clients.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(won.iter().filter(|it| **it).count(), 1, "{won:?}");
    }
    assert_eq!(service.client("bob").reservations().unwrap().len(), 5);
}

#[test]
fn experiments_run_in_turn_and_their_results_are_fetched() {
    let place = Place::new();
    let service = place.start();
    let (alice, bob) = (service.client("alice"), service.client("bob"));
    let one = alice.submit(&experiment("a")).unwrap();
    wait(&bob, one.id, State::Running, Some(1));
    let two = bob.submit(&experiment("a")).unwrap();
    assert_eq!((two.state, two.started), (State::Waiting, None));
    assert!(two.expected.unwrap() > one.submitted);
    refused(
        bob.reserve(&wish(&["a"], 60)),
        409,
        "experiment 1 of alice runs on a until",
    );
    refused(bob.cancel(one.id), 403, "experiment 1 belongs to alice");
    place.say("go");
    let ended = wait(&alice, one.id, State::Finished, Some(2));
    assert!(ended.ended.is_some() && ended.reason.is_none(), "{ended:?}");
    wait(&bob, two.id, State::Running, Some(1));
    assert!(bob.log(two.id).unwrap().ends_with("working\n"));
    place.say("fail");
    let failed = wait(&bob, two.id, State::Failed, None);
    assert_eq!(failed.reason.as_deref(), Some("1 of 2 runs are missing"));
    // The results have all files except those of runs in progress.
    let out = place.folder.path().join("fetched/one");
    bob.fetch(one.id, &out).unwrap();
    let call = fs::read_to_string(out.join("calls")).unwrap();
    assert!(
        call.starts_with("experiment run ") && call.contains("/one.toml --out "),
        "{call}"
    );
    assert!(out.join("state.json").is_file() && !out.join("runs").exists());
    assert!(matches!(
        bob.fetch(one.id, &out),
        Err(ClientError::Io { .. })
    ));
    // A second start continues the experiment.
    bob.retry(two.id).unwrap();
    wait(&bob, two.id, State::Running, Some(1));
    place.say("go");
    wait(&bob, two.id, State::Finished, None);
    refused(bob.retry(two.id), 409, "nothing to retry");
    refused(bob.cancel(two.id), 409, "nothing to cancel");
    refused(bob.fetch(9, &out.join("x")), 404, "no experiment 9");
    assert_eq!(bob.experiments().unwrap().len(), 2);
}

#[test]
fn cancelled_experiments_end_and_failed_starts_report_the_reason() {
    let place = Place::new();
    let service = place.start();
    let (alice, root) = (service.client("alice"), service.client("root"));
    let one = alice.submit(&experiment("a")).unwrap();
    let two = alice.submit(&experiment("a")).unwrap();
    wait(&alice, one.id, State::Running, Some(1));
    assert_eq!(alice.cancel(two.id).unwrap().state, State::Cancelled);
    root.cancel(one.id).unwrap();
    let ended = wait(&alice, one.id, State::Cancelled, Some(1));
    assert_eq!(ended.reason.as_deref(), Some("cancelled by root"));
    // The reason that prevents the first run is reported, even if results of an earlier start exist.
    place.say("early");
    for id in [one.id, alice.submit(&experiment("a")).unwrap().id] {
        if id == one.id {
            alice.retry(id).unwrap();
        }
        let failed = wait(&alice, id, State::Failed, None);
        assert_eq!(failed.reason.as_deref(), Some("node dut: no route to host"));
    }
    place.unsay("early");
}

#[test]
fn reservations_are_kept_free_for_their_own_experiments() {
    let place = Place::new();
    let service = place.start();
    let (alice, bob) = (service.client("alice"), service.client("bob"));
    let reserved = alice.reserve(&wish(&["a", "b"], 2)).unwrap();
    let waits = bob.submit(&experiment("a")).unwrap();
    assert!(waits.expected.unwrap() >= reserved.until);
    let other = SubmitRequest {
        reservation: Some(1),
        ..experiment("c")
    };
    refused(bob.submit(&other), 403, "reservation 1 belongs to alice");
    refused(
        alice.submit(&other),
        400,
        "uses c, which reservation 1 does not have",
    );
    let own = alice.submit(&experiment("a")).unwrap();
    assert_eq!(own.reservation, Some(1));
    wait(&alice, own.id, State::Running, Some(1));
    refused(
        alice.release("1"),
        409,
        "experiment 2 runs in reservation 1",
    );
    // At the end of the reservation its experiment ends, and returns to the queue after the experiment that has waited
    // since before.
    wait(&bob, waits.id, State::Running, Some(1));
    let again = alice.experiment(own.id).unwrap();
    assert_eq!((again.state, again.reservation), (State::Waiting, None));
    assert!(
        again
            .reason
            .unwrap()
            .starts_with("interrupted, as its time")
    );
    for (client, id) in [(&bob, waits.id), (&alice, own.id)] {
        wait(client, id, State::Running, Some(1));
        place.say("go");
        wait(client, id, State::Finished, Some(2));
    }
}

#[test]
fn a_restarted_service_finds_its_experiments_again() {
    let place = Place::new();
    let service = place.start();
    let alice = service.client("alice");
    let [one, two] = ["a", "b"].map(|node| alice.submit(&experiment(node)).unwrap().id);
    let reserved = alice.reserve(&wish(&["c"], 600)).unwrap();
    wait(&alice, one, State::Running, Some(1));
    wait(&alice, two, State::Running, Some(1));
    drop(service);
    // One process ends while no service is running, another is killed; the next service detects both.
    let service = place.start();
    let alice = service.client("alice");
    assert_eq!(alice.reservations().unwrap(), [reserved]);
    for id in [one, two] {
        assert_eq!(alice.experiment(id).unwrap().state, State::Running);
    }
    drop(service);
    for word in ["go", "die"] {
        place.say(word);
        let deadline = Instant::now() + PATIENCE;
        while place.folder.path().join(format!("program.{word}")).exists() {
            assert!(Instant::now() < deadline, "no process took {word}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let service = place.start();
    let alice = service.client("alice");
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        let all = alice.experiments().unwrap();
        if all.iter().all(|it| it.state.is_over()) {
            break all;
        }
        assert!(Instant::now() < deadline, "{all:?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut states: Vec<State> = ended.iter().map(|it| it.state).collect();
    states.sort_unstable();
    assert_eq!(states, [State::Finished, State::Failed]);
    let failed = ended.iter().find(|it| it.state == State::Failed).unwrap();
    assert!(
        failed
            .reason
            .as_ref()
            .unwrap()
            .starts_with("its process was killed"),
        "{failed:?}"
    );
    // The service that runs keeps the folder locked, so no second service can use it.
    let error = place.lab_error();
    assert!(
        error.contains("another taut lab serve uses this folder"),
        "{error}"
    );
}

impl Place {
    fn lab_error(&self) -> String {
        let state = self.folder.path().join("state");
        let hash = TokenHash::of("x");
        let text = format!(
            "folder = {state:?}\n[users.x]\ntoken = \"{}\"\n[nodes.a]\nat = \"local\"\n",
            hash.as_str()
        );
        let file = LabFile::parse(&text, "lab.toml").unwrap();
        Lab::open(file, Path::new("x")).err().unwrap().to_string()
    }
}

#[test]
fn experiments_whose_process_dies_are_restarted_if_configured() {
    let place = Place::new();
    let service = place.start_in(&place.folder.path().join("state"), "retry = true");
    let alice = service.client("alice");
    let id = alice.submit(&experiment("a")).unwrap().id;
    let calls = place
        .folder
        .path()
        .join("state/experiments/1/results/calls");
    for start in 1..=2 {
        while fs::read_to_string(&calls)
            .unwrap_or_default()
            .lines()
            .count()
            < start
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        place.say("die");
    }
    while fs::read_to_string(&calls).unwrap().lines().count() < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    place.say("go");
    wait(&alice, id, State::Finished, Some(2));
    let calls = fs::read_to_string(&calls).unwrap();
    let words: Vec<&str> = calls
        .lines()
        .filter_map(|it| it.split(' ').nth(1))
        .collect();
    assert_eq!(words, ["run", "resume", "resume"]);
}

#[test]
fn invalid_requests_get_a_one_line_error_and_change_nothing() {
    let place = Place::new();
    let service = place.start();
    refused(
        service.client("nobody").nodes(),
        401,
        "wrong or missing token",
    );
    let get =
        |path: &str| service.raw(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    for path in ["/v1/nodes", "/v1/experiments/1/log", "/v1/experiments"] {
        let said = get(path);
        assert!(said.starts_with("HTTP/1.1 401 "), "{said}");
        assert!(said.contains("\r\nWWW-Authenticate: Bearer\r\n"), "{said}");
    }
    for path in ["/", "/page.js", "/page.css", "/openapi.json"] {
        assert!(get(path).starts_with("HTTP/1.1 200 OK\r\n"), "{path}");
    }
    assert!(get("/v1/nothing").starts_with("HTTP/1.1 404 "));
    let with = |method: &str, path: &str, body: &str| {
        let length = body.len();
        service.raw(
            format!(
                "{method} {path} HTTP/1.1\r\nAuthorization: Bearer alice\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    };
    let long = "9".repeat(30);
    for (method, path, body, code) in [
        ("PUT", "/v1/nodes", "", "405"),
        ("DELETE", "/v1/experiments/1", "", "405"),
        ("GET", "/v1/experiments/x", "", "404"),
        ("GET", &format!("/v1/experiments/{long}"), "", "404"),
        ("GET", "/v1/experiments/1/results.tar.gz", "", "404"),
        ("DELETE", "/v1/reservations/..", "", "404"),
        ("POST", "/v1/reservations", "", "400"),
        ("POST", "/v1/reservations", "[]", "400"),
        (
            "POST",
            "/v1/reservations",
            "{\"nodes\": [\"a\"], \"x\": 1}",
            "400",
        ),
        ("POST", "/v1/reservations", &"[".repeat(10_000), "400"),
        (
            "POST",
            "/v1/reservations",
            "{\"nodes\": [\"a\"], \"seconds\": 18446744073709551615}",
            "400",
        ),
        (
            "POST",
            "/v1/experiments",
            "{\"name\": \"a\", \"text\": \"\u{0}\"}",
            "400",
        ),
        (
            "POST",
            "/v1/experiments",
            "{\"name\": \"\", \"text\": \"title = 'x'\"}",
            "400",
        ),
    ] {
        let said = with(method, path, body);
        assert!(
            said.starts_with(&format!("HTTP/1.1 {code} ")),
            "{method} {path} {body}: {said}"
        );
        let body = said.split_once("\r\n\r\n").unwrap().1;
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        let reason = problem["error"].as_str().unwrap();
        assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
    }
    let chunked = service.raw(
        b"POST /v1/experiments HTTP/1.1\r\nAuthorization: Bearer alice\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    );
    assert!(chunked.starts_with("HTTP/1.1 411 "), "{chunked}");
    // A body that is too long is refused before it is read.
    let head = format!(
        "POST /v1/experiments HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        MOST_BODY_BYTES + 1
    );
    let said = service.raw(head.as_bytes());
    assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..50 {
        let noise: Vec<u8> = (0..random.usize(..3000)).map(|_| random.u8(..)).collect();
        let mut stream = TcpStream::connect(service.server.address()).unwrap();
        let _ = stream.write_all(&noise);
    }
    let alice = service.client("alice");
    assert!(alice.reservations().unwrap().is_empty() && alice.experiments().unwrap().is_empty());
    alice.reserve(&wish(&["a"], 60)).unwrap();
}

#[test]
fn a_full_disk_refuses_requests_and_loses_nothing() {
    // As root the test makes a small file system.
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let place = Place::new();
    let disk = place.folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=400k", "none"])
        .arg(&disk);
    if !mount.status().is_ok_and(|it| it.success()) {
        return println!("skipped: needs the right to mount a tmpfs");
    }
    let _mounted = Mounted(disk.clone());
    let service = place.start_in(&disk.join("state"), "");
    let alice = service.client("alice");
    let mut made = vec![alice.reserve(&wish(&["a"], 60)).unwrap()];
    let filler = disk.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    // The file of the write-ahead log still has space for a few reservations.
    let mut full = 0;
    for hour in 1..200 {
        let wish = ReserveRequest {
            from: Some(in_seconds(3600 * hour)),
            ..wish(&["a"], 60)
        };
        match alice.reserve(&wish) {
            Ok(reservation) => made.push(reservation),
            Err(e) => {
                refused(Err::<(), _>(e), 507, "no space left; nothing was changed");
                full += 1;
            }
        }
        if full == 3 {
            break;
        }
    }
    assert_eq!(full, 3);
    refused(alice.submit(&experiment("a")), 507, "no space left");
    assert_eq!(alice.reservations().unwrap(), made);
    fs::remove_file(&filler).unwrap();
    made.push(alice.reserve(&wish(&["b"], 60)).unwrap());
    drop(service);
    let service = place.start_in(&disk.join("state"), "");
    let mut kept = service.client("bob").reservations().unwrap();
    kept.sort_by_key(|it| it.id.parse::<u64>().unwrap());
    made.sort_by_key(|it| it.id.parse::<u64>().unwrap());
    assert_eq!(kept, made);
}

/// A mounted file system that is unmounted on drop.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn the_stored_description_is_that_of_the_service() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/lab-openapi.json");
    let made = taut_testbed::openapi();
    let text = serde_json::to_string_pretty(&made).unwrap() + "\n";
    if std::env::var_os("TAUT_WRITE_REFERENCE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == text,
        "write it anew: TAUT_WRITE_REFERENCE=1 cargo test -p taut-testbed description"
    );
    let schemas = made["components"]["schemas"].as_object().unwrap();
    let references = text.split("\"#/components/schemas/").skip(1);
    for name in references.map(|it| it.split('"').next().unwrap()) {
        assert!(schemas.contains_key(name), "{name}");
    }
    assert_eq!(made["paths"].as_object().unwrap().len(), 10);
}
