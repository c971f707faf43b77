#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::symlink;

/// Creates a folder with results: a running experiment, results of another kind, broken results, and unrelated files.
fn results() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put(
        "a/state.json",
        r#"{"title": "One <b>", "stage": "running", "started": "2026-01-02T00:00:00Z", "done": 3, "planned": 9,
            "command_line": "taut experiment run lange-fig3 --out a"}"#,
    );
    put(
        "a/summary.json",
        r#"{"verdicts": [{"verdict": "same"}, {"verdict": "unclear"}, {"verdict": "reproduced"}]}"#,
    );
    put("a/report.html", "<p>report</p>");
    put("deep/er/probe/index.html", "<p>published</p>");
    put("a/runs/v1-r1/log", "x");
    put(
        "deep/er/probe/summary.json",
        r#"{"started": "2026-01-01T00:00:00Z", "command_line": "/usr/bin/taut probe client ::1"}"#,
    );
    put("broken/state.json", "{");
    put("none/readme", "");
    put(".hidden/state.json", "{}");
    put("half.partial/state.json", "{}");
    put("secret", "secret");
    symlink(dir.path().join("secret"), dir.path().join("a/link")).unwrap();
    dir
}

struct Asked {
    server: Server,
    token: String,
    _dir: tempfile::TempDir,
}

impl Asked {
    fn new() -> Self {
        let dir = results();
        let index = Index::new(dir.path());
        index.look();
        let secrets = Secrets::draw().unwrap();
        let token = secrets.token.clone();
        let keys = Keys::default();
        let server = Server::start("page", "127.0.0.1:0", move |request| {
            answer(request, &secrets, &keys, &index, &[])
        })
        .unwrap();
        Self {
            server,
            token,
            _dir: dir,
        }
    }

    fn say(&self, text: &str) -> String {
        let mut client = TcpStream::connect(self.server.address()).unwrap();
        client.write_all(text.as_bytes()).unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).unwrap();
        String::from_utf8_lossy(&said).into_owned()
    }

    fn get(&self, path: &str) -> String {
        let token = &self.token;
        self.say(&format!(
            "GET /{token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:9200\r\n\r\n"
        ))
    }
}

impl Asked {
    /// Returns the content of the frame around a report or a comparison.
    fn framed(&self, path: &str) -> String {
        let around = self.get(path);
        let address = around.split("<iframe src=\"").nth(1).unwrap();
        let address = address.split('"').next().unwrap();
        assert!(!address.contains(&self.token), "{address}");
        self.say(&format!(
            "GET {address} HTTP/1.1\r\nHost: 127.0.0.1:9200\r\nSec-Fetch-Dest: iframe\r\n\r\n"
        ))
    }
}

fn body(said: &str) -> &str {
    said.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn the_list_contains_all_results_including_broken_results() {
    let asked = Asked::new();
    let list: Vec<Value> = serde_json::from_str(body(&asked.get("list.json"))).unwrap();
    let names: Vec<&str> = list.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "deep/er/probe", "broken"]);
    let [first, probe, broken] = &list[..] else {
        panic!("{list:?}")
    };
    assert_eq!(
        (&first["kind"], &first["done"], &first["planned"]),
        (&"experiment run".into(), &3.into(), &9.into())
    );
    assert_eq!(
        first["verdicts"],
        json!({"same": 1, "unclear": 1, "holds": 1})
    );
    assert_eq!(
        (&probe["kind"], &probe["is_experiment"]),
        (&"probe client".into(), &false.into())
    );
    assert_eq!(probe["command"], "taut probe client ::1");
    assert_eq!(
        (&probe["has_report"], &broken["has_report"]),
        (&true.into(), &false.into())
    );
    assert!(
        broken["problem"]
            .as_str()
            .unwrap()
            .starts_with("state.json: "),
        "{broken}"
    );
}

#[test]
fn the_server_requires_the_token_and_serves_only_result_files() {
    let asked = Asked::new();
    let page = asked.get("");
    assert!(
        page.contains("200 OK") && page.contains("script-src 'nonce-") && !page.contains("{{"),
        "{page}"
    );
    let around = asked.get("report/a");
    assert!(
        around.contains("; frame-src 'self'") && around.contains("sandbox=\"allow-scripts\""),
        "{around}"
    );
    let report = asked.framed("report/a");
    assert!(
        report.contains("; sandbox allow-scripts; script-src 'nonce-")
            && report.ends_with("<p>report</p>"),
        "{report}"
    );
    let published = asked.framed("report/deep%2Fer%2Fprobe");
    assert!(published.ends_with("<p>published</p>"), "{published}");
    let live: Value = serde_json::from_str(body(&asked.get("live/a"))).unwrap();
    assert_eq!((&live["done"], &live["runs"]), (&3.into(), &json!([])));
    let log = asked.get("file/a/runs/v1-r1/log");
    assert!(
        log.contains("attachment; filename=\"log\"") && log.ends_with("\r\n\r\nx"),
        "{log}"
    );
    let files: Value = serde_json::from_str(body(&asked.get("files/a"))).unwrap();
    let names: Vec<&str> = files["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "report.html",
            "runs/v1-r1/log",
            "state.json",
            "summary.json"
        ]
    );
    for (path, status) in [
        ("file/a/link", 404),
        ("file/a/../secret", 404),
        ("file/a/..%2Fsecret", 404),
        ("file/..%2F..%2Fetc/passwd", 404),
        ("file/none/readme", 404),
        ("file/a", 404),
        ("report/broken", 404),
        ("files/nowhere", 404),
        ("live/nowhere", 404),
        ("live/broken", 422),
        ("watched/0", 404),
        ("watched/x", 404),
        ("elsewhere", 404),
        ("%zz", 400),
        ("%ff", 400),
        ("report/nowhere", 404),
        ("compare/a/nowhere", 404),
    ] {
        let said = asked.get(path);
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {said}"
        );
        assert!(
            !said.contains("secret\n") && !said.ends_with("secret"),
            "{path}: {said}"
        );
    }
    let failed = asked.framed("compare/a/broken");
    assert!(failed.starts_with("HTTP/1.1 422 "), "{failed}");
    let wrong = asked.say("GET /0123/list.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert!(wrong.starts_with("HTTP/1.1 403 "), "{wrong}");
    let none = asked.say("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert!(none.starts_with("HTTP/1.1 403 "), "{none}");
    let name = format!(
        "GET /{}/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
        asked.token
    );
    assert!(asked.say(&name).starts_with("HTTP/1.1 421 "));
    let post = format!("POST /{}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", asked.token);
    assert!(asked.say(&post).starts_with("HTTP/1.1 405 "));
}

#[test]
fn ten_thousand_folders_are_listed_and_deleted_folders_removed() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..10_000 {
        let folder = dir.path().join(format!("{:02}/{number:05}", number % 100));
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            folder.join("state.json"),
            r#"{"title": "x", "stage": "finished", "started": "2026"}"#,
        )
        .unwrap();
    }
    let index = Index::new(dir.path());
    index.look();
    assert_eq!(index.len(), 10_000);
    let list: Vec<Value> = serde_json::from_str(&index.as_json()).unwrap();
    assert_eq!(list.len(), 10_000);
    fs::remove_dir_all(dir.path().join("00")).unwrap();
    index.look();
    assert_eq!(index.len(), 9_900);
}

#[test]
fn a_report_key_opens_only_that_report_in_an_iframe() {
    let asked = Asked::new();
    let around = asked.get("report/a");
    let address = around.split("<iframe src=\"").nth(1).unwrap();
    let address = address.split('"').next().unwrap();
    let key = address.split('/').nth(1).unwrap();
    let get = |path: &str, more: &str| {
        asked.say(&format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:9200\r\n{more}\r\n"
        ))
    };
    assert!(get(address, "").starts_with("HTTP/1.1 200 "));
    let as_page = get(address, "Sec-Fetch-Dest: document\r\n");
    assert!(as_page.starts_with("HTTP/1.1 403 "), "{as_page}");
    for path in [
        "",
        "list.json",
        "files/a",
        "file/a/runs/v1-r1/log",
        "report/broken",
        "compare/a/a",
        "compare/a/report",
    ] {
        let said = get(&format!("/{key}/{path}"), "");
        assert!(said.starts_with("HTTP/1.1 403 "), "{path}: {said}");
    }
}

#[test]
fn only_scripts_of_taut_reports_are_allowed_to_run() {
    let [hover, sliders] = SCRIPTS;
    let text = format!(
        "<script>\n{hover}\n</script><script type=\"application/json\" id=\"models\">{{}}</script>\
         <script>{sliders}</script><script>{hover} more</script><script>mine()</script><script>"
    );
    let shown = tamed(of_html(text.into_bytes()), "secret");
    let shown = String::from_utf8(shown.body).unwrap();
    let with = "<script nonce=\"secret\">";
    assert_eq!(shown.matches(with).count(), 2, "{shown}");
    assert!(shown.starts_with(with));
    assert!(shown.ends_with(" more</script><script>mine()</script><script>"));
    let begun = shown.split(with).nth(2).unwrap();
    assert_eq!(begun.split("</script>").next().unwrap(), sliders);
    let links = b"<meta charset=\"utf-8\"><p><LiNk rel=preconnect href=//x><META\nhttp-equiv=refresh>\xff\xfe<iframe></p>";
    let shown = tamed(of_html(links.to_vec()), "secret");
    assert_eq!(
        String::from_utf8(shown.body).unwrap(),
        "<meta charset=\"utf-8\"><p><x-LiNk rel=preconnect href=//x><x-META\nhttp-equiv=refresh>\u{fffd}\u{fffd}<x-iframe></p>"
    );
}

#[test]
fn special_files_do_not_block_the_list() {
    let dir = results();
    for name in ["pipe", "stdin", "zero"] {
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("state.json"), r#"{"title": "x"}"#).unwrap();
        for file in ["summary.json", "report.html", "runs.jsonl"] {
            let path = folder.join(file);
            match name {
                "pipe" => {
                    let made = std::process::Command::new("mkfifo").arg(path).status();
                    assert!(made.unwrap().success());
                }
                "stdin" => symlink("/proc/self/fd/0", path).unwrap(),
                _ => symlink("/dev/zero", path).unwrap(),
            }
        }
    }
    let index = Index::new(dir.path());
    index.look();
    let list: Vec<Value> = serde_json::from_str(&index.as_json()).unwrap();
    for name in ["pipe", "stdin", "zero"] {
        let entry = list.iter().find(|it| it["name"] == name).unwrap();
        assert_eq!(entry["title"], "x");
        assert_eq!(
            (&entry["verdicts"], &entry["has_report"]),
            (&json!({}), &false.into())
        );
        let said = live::experiment(&dir.path().join(name)).unwrap();
        assert!(said["problem"].is_string(), "{said}");
    }
}

#[test]
fn page_scripts_index_no_plain_objects_by_received_keys() {
    // A lookup by `[...]` in a plain object would also find inherited properties, so the page must not use it for these
    // objects.
    for looked_up in ["words[", "kinds[", "metrics || {})["] {
        assert!(!PAGE.contains(looked_up), "{looked_up}");
    }
}
