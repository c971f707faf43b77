//! `taut serve`: results folders in a browser, read only.
//!
//! Every address contains the token that is printed at the start, and requests by host name are refused. Files are
//! looked up by names that cannot lead outside the folder. A report may come from an untrusted source, so it is shown
//! in a frame of our page. The page's policy keeps the frame from navigating elsewhere. The frame's own policy allows
//! only the scripts that our reports have. The address of the frame contains a key that opens only this report.

mod index;
mod live;

use crate::exit::{self, Failure};
use crate::forward;
use crate::terminal::print;
use crate::terminal::secrets::{Secrets, is_same, secret};
use index::{Index, Watching};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use taut_bench::report::HOVER;
use taut_benchmarks::costs::SLIDERS;
use taut_experiment::compare::{Wanted, compare};
use taut_experiment::write_comparison;
use taut_live::http::{Reply, Request, Server, is_no_name};
use taut_results::InsidePath;

const PAGE: &str = include_str!("page.html");
/// All scripts in the pages of reports.
const SCRIPTS: [&str; 2] = [HOVER, SLIDERS];
/// The HTML page around the frame with a report.
const FRAME: &str = include_str!("frame.html");
/// The placeholder in the page for the address of the frame with the report.
const ADDRESS: &str = "{{address}}";
/// The placeholder in the page for the nonce of its scripts.
const NONCE: &str = "{{nonce}}";
const TOKEN: &str = "{{token}}";
/// The placeholder for the addresses whose metrics are shown.
const WATCHED: &str = "{{watched}}";
/// The largest file that is served, bytes.
const MOST_FILE_BYTES: u64 = 256 << 20;
/// The largest number of files listed per folder.
const MOST_FILES: usize = 5_000;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut serve
  taut serve results --listen 9200
  taut serve --watch 127.0.0.1:9100   and how a forwarder does that runs with --metrics 127.0.0.1:9100

Open the address that it prints. The list follows what is written below the folder: a running experiment shows how far it is, and run by
run what it measures. Tick two experiments to compare them. Ctrl-C ends it.")]
pub struct Arguments {
    /// Folder with results folders, or with folders of them
    #[arg(default_value = "results")]
    dir: PathBuf,
    /// Port of this machine, or address and port; 0 takes a free port
    #[arg(long, value_name = "PORT", default_value = "9200")]
    listen: String,
    /// Show a running forwarder, generator, chain or capture as well: the address of its --metrics; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    watch: Vec<String>,
    /// End when standard input closes, for programs that start taut and must not leave it behind
    #[arg(long)]
    until_stdin_closes: bool,
    /// Print the address as JSON: `event`, `url` and `folders`
    #[arg(long)]
    json: bool,
}

/// The line of `taut serve --json`.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Line<'a> {
    /// The service has started, and shows results at `url`.
    Started { url: &'a str, folders: usize },
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = &arguments.dir;
    if !dir.is_dir() {
        return Err(Failure::Input(format!(
            "{}: no such folder; taut demo creates results/ with a first result",
            dir.display()
        )));
    }
    let watched: Result<Vec<_>, _> = arguments.watch.iter().map(|it| live::address(it)).collect();
    let watched = watched?;
    let stop = exit::stop_flag()?;
    let index = Arc::new(Index::new(dir));
    index.look();
    let _watching = Watching::begin(&index)
        .map_err(|e| Failure::Missing(format!("cannot start a thread: {e}")))?;
    let keys = Keys::default();
    let secrets = Secrets::draw()
        .map_err(|e| Failure::Missing(format!("cannot generate a secret for the page: {e}")))?;
    let token = secrets.token.clone();
    let address = match arguments.listen.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => arguments.listen.clone(),
    };
    let shown = Arc::clone(&index);
    let server = Server::start("page", &address, move |request| {
        answer(request, &secrets, &keys, &shown, &watched)
    })?;
    let url = format!("http://{}/{token}/", server.address());
    if !server.address().ip().is_loopback() {
        print::note(
            "anyone with the address below sees all results, and hosts on the path can read it",
        );
    }
    let folders = index.len();
    print::line(forward::json_or_text(
        arguments.json,
        || Line::Started { url: &url, folders },
        || format!("{folders} results folders at {url}"),
    ));
    forward::wait(stop, &[], arguments.until_stdin_closes, None);
    Ok(())
}

/// The keys for addresses of reports: each key opens one report, and does not reveal the keys of other reports.
#[derive(Default)]
struct Keys([RandomState; 2]);

impl Keys {
    /// Returns the key for the address whose parts after the token are `parts`.
    fn of(&self, parts: &[&str]) -> String {
        let [one, other] = self.0.each_ref().map(|keyed| keyed.hash_one(parts));
        format!("{one:016x}{other:016x}")
    }
}

/// Splits the path after the token into its parts and decodes `%XX`; `None` if a part is not UTF-8.
fn parts(path: &str) -> Option<Vec<String>> {
    path.trim_start_matches('/')
        .split('/')
        .map(decoded)
        .collect()
}

fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).ok()
}

fn answer(
    request: &Request<'_>,
    secrets: &Secrets,
    keys: &Keys,
    index: &Index,
    watched: &[SocketAddr],
) -> Reply {
    if let Some(reply) = refusal(request) {
        return reply;
    }
    let Some(parts) = parts(request.path) else {
        return Reply::text("400 Bad Request", "invalid path");
    };
    let words: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (Some(token), rest) = (words.first(), words.get(1..).unwrap_or_default()) else {
        return missing();
    };
    let is_shown = matches!(rest, ["report", _] | ["compare", _, _]);
    let (reply, policy) = if secrets.is_token(token) {
        let reply = match rest {
            [""] => page(secrets, watched),
            ["list.json"] => of_json(index.as_json()),
            ["files", folder] => files(index, folder),
            ["live", folder] => experiment(index, folder),
            ["watched", number] => metrics(watched, number),
            ["file", folder, name @ ..] => file(index, folder, &name.join("/"), true),
            parts if is_shown && is_there(index, parts) => frame(secrets, &keys.of(parts), parts),
            _ => missing(),
        };
        (reply, own_policy(secrets))
    } else if is_shown && is_same(token, &keys.of(rest)) {
        // A report outside the frame could navigate anywhere, so it is shown in a frame.
        if request.field("Sec-Fetch-Dest") == Some("document") {
            return Reply::text("403 Forbidden", "this address opens in a frame only");
        }
        let reply = match rest {
            ["compare", one, other] => compared(index, one, other),
            [_, folder] => report(index, folder),
            _ => missing(),
        };
        let Ok(nonce) = secret() else {
            return Reply::text(
                "503 Service Unavailable",
                "cannot generate a secret for the page",
            );
        };
        let policy = format!(
            "sandbox allow-scripts; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
        );
        (tamed(reply, &nonce), policy)
    } else {
        return Reply::text(
            "403 Forbidden",
            "use the address that taut serve printed: it contains the token",
        );
    };
    with_policy(reply, &policy)
}

/// Returns a refusal of a request that uses a host name, or a method other than GET and HEAD; none if the request is
/// allowed.
fn refusal(request: &Request<'_>) -> Option<Reply> {
    if !request.field("Host").is_some_and(is_no_name) {
        let text = "this page is served under its IP address and localhost only";
        return Some(Reply::text("421 Misdirected Request", text));
    }
    if !matches!(request.method, "GET" | "HEAD") {
        return Some(Reply {
            fields: Cow::Borrowed("Allow: GET, HEAD\r\n"),
            ..Reply::text("405 Method Not Allowed", "only GET and HEAD are supported")
        });
    }
    None
}

/// Returns the content security policy of our own pages.
fn own_policy(secrets: &Secrets) -> String {
    let of_ours = [
        nonce_policy("script-src", secrets),
        nonce_policy("style-src", secrets),
    ]
    .concat();
    let more = "connect-src 'self'; frame-src 'self'; img-src data:; frame-ancestors 'none'";
    format!("{of_ours}{more}")
}

/// Adds header fields: the content security policy with `policy`, and those that keep browsers from storing the page or
/// sending its address to other sites.
fn with_policy(reply: Reply, policy: &str) -> Reply {
    let fields = format!(
        "{}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nX-DNS-Prefetch-Control: off\r\n\
         Content-Security-Policy: default-src 'none'; base-uri 'none'; form-action 'none'; {policy}\r\n",
        reply.fields
    );
    Reply {
        fields: Cow::Owned(fields),
        ..reply
    }
}

/// Returns a directive of a content security policy that allows only elements with our page's nonce.
fn nonce_policy(of: &str, secrets: &Secrets) -> String {
    format!("{of} 'nonce-{}'; ", secrets.nonce)
}

/// Returns true if the address leads to a page.
fn is_there(index: &Index, parts: &[&str]) -> bool {
    match parts {
        ["report", folder] => index
            .path_of(folder)
            .is_some_and(|path| index::report_of(&path).is_some()),
        [_, folders @ ..] => folders.iter().all(|it| index.path_of(it).is_some()),
        [] => false,
    }
}

/// Returns the page around the frame with a report or a comparison.
fn frame(secrets: &Secrets, key: &str, parts: &[&str]) -> Reply {
    let parts: Vec<String> = parts.iter().map(|it| encoded(it)).collect();
    let address = format!("/{key}/{}", parts.join("/"));
    let text = FRAME
        .replace(NONCE, &secrets.nonce)
        .replace(ADDRESS, &address);
    of_html(text.into_bytes())
}

/// Encodes a part of a path: `%XX` for every byte that is neither a letter nor a digit.
fn encoded(part: &str) -> String {
    let of = |byte: u8| match byte {
        b if b.is_ascii_alphanumeric() => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    part.bytes().map(of).collect()
}

/// Tags that make a browser connect to their target without a click, before the browser checks the policy. Our reports
/// contain only [`OURS`] of these tags.
const LEADING: [&str; 7] = [
    "<link", "<meta", "<iframe", "<frame", "<object", "<embed", "<portal",
];
const OURS: [&str; 2] = [
    "<meta charset=\"utf-8\">",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">",
];

/// Inserts the policy's nonce into the scripts of our reports, so that no other script runs. Prefixes the names of
/// [`LEADING`] tags with `x-`, which browsers ignore.
fn tamed(reply: Reply, nonce: &str) -> Reply {
    const BEGIN: &str = "<script>";
    // A browser could read invalid UTF-8 as text in another encoding.
    let text = String::from_utf8_lossy(&reply.body);
    let lower = text.to_ascii_lowercase();
    let (mut shown, mut at) = (String::with_capacity(text.len()), 0);
    while let Some(found) = lower[at..].find('<') {
        let (before, tag) = text[at..].split_at(found);
        let script = tag
            .strip_prefix(BEGIN)
            .and_then(|it| it.split_once("</script>"));
        let is_ours =
            script.is_some_and(|(script, _)| SCRIPTS.iter().any(|it| it.trim() == script.trim()));
        shown += before;
        let (instead, taken) = match script {
            Some((script, _)) if is_ours => (
                format!("<script nonce=\"{nonce}\">{script}"),
                BEGIN.len() + script.len(),
            ),
            _ if is_leading(&lower[at + found..]) => ("<x-".to_owned(), 1),
            _ => ("<".to_owned(), 1),
        };
        shown += &instead;
        at += found + taken;
    }
    shown += &text[at..];
    Reply {
        body: shown.into_bytes(),
        ..reply
    }
}

/// Reports whether lower-case text begins with one of the [`LEADING`] tags that is not one of [`OURS`].
fn is_leading(text: &str) -> bool {
    let begins = |tags: &[&str]| tags.iter().any(|it| text.starts_with(it));
    begins(&LEADING) && !begins(&OURS)
}

fn missing() -> Reply {
    Reply::text("404 Not Found", "no such page")
}

fn page(secrets: &Secrets, watched: &[SocketAddr]) -> Reply {
    let text = PAGE
        .replace(NONCE, &secrets.nonce)
        .replace(TOKEN, &secrets.token)
        .replace(WATCHED, &json!(watched).to_string());
    of_html(text.into_bytes())
}

fn of_html(body: Vec<u8>) -> Reply {
    Reply {
        status: "200 OK",
        kind: "text/html; charset=utf-8",
        fields: Cow::Borrowed(""),
        body,
    }
}

fn of_json(text: String) -> Reply {
    Reply {
        kind: "application/json",
        ..of_html(text.into_bytes())
    }
}

/// Returns the progress of an experiment and the metrics of its latest runs.
fn experiment(index: &Index, folder: &str) -> Reply {
    let Some(path) = index.path_of(folder) else {
        return missing();
    };
    match live::experiment(&path) {
        Ok(found) => of_json(found.to_string()),
        Err(e) => Reply::text("422 Unprocessable Content", &e),
    }
}

/// Returns the metrics of the watched program with index `number`, for the page.
fn metrics(watched: &[SocketAddr], number: &str) -> Reply {
    let Some(address) = number.parse().ok().and_then(|it: usize| watched.get(it)) else {
        return missing();
    };
    match live::metrics(*address) {
        Ok(body) => Reply {
            kind: "text/plain; charset=utf-8",
            ..of_html(body)
        },
        Err(e) => Reply::text("502 Bad Gateway", &e.to_string()),
    }
}

/// Lists the files of a results folder.
fn files(index: &Index, folder: &str) -> Reply {
    let Some(path) = index.path_of(folder) else {
        return missing();
    };
    let mut files = Vec::new();
    let is_whole = index::files_below(&path, Path::new(""), &mut files, MOST_FILES);
    of_json(json!({"files": files, "is_whole": is_whole}).to_string())
}

/// Serves the report of a results folder for display.
fn report(index: &Index, folder: &str) -> Reply {
    let name = index.path_of(folder).and_then(|it| index::report_of(&it));
    name.map_or_else(missing, |name| file(index, folder, name, false))
}

/// Serves a file of a results folder, as a download or for display.
fn file(index: &Index, folder: &str, name: &str, is_download: bool) -> Reply {
    let Some(path) = index.path_of(folder) else {
        return missing();
    };
    let opened = InsidePath::new(name)
        .map_err(|e| std::io::Error::other(e.to_string()))
        .and_then(|name| name.open(&path));
    let read = opened.and_then(|file| {
        let mut body = Vec::new();
        file.take(MOST_FILE_BYTES + 1).read_to_end(&mut body)?;
        Ok(body)
    });
    match read {
        Err(e) => Reply::text("404 Not Found", &format!("{name}: {e}")),
        Ok(body) if body.len() as u64 > MOST_FILE_BYTES => Reply::text(
            "413 Content Too Large",
            &format!(
                "{name} is larger than {} MiB: copy the file instead",
                MOST_FILE_BYTES >> 20
            ),
        ),
        Ok(body) if is_download => {
            let last = name.rsplit('/').next().unwrap_or(name);
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            let last: String = last
                .chars()
                .map(|c| if plain(c) { c } else { '_' })
                .collect();
            Reply {
                kind: "application/octet-stream",
                fields: Cow::Owned(format!(
                    "Content-Disposition: attachment; filename=\"{last}\"\r\n"
                )),
                ..of_html(body)
            }
        }
        Ok(body) => of_html(body),
    }
}

/// Compares two experiments, as `taut experiment compare` does, and returns the resulting page.
fn compared(index: &Index, one: &str, other: &str) -> Reply {
    let (Some(one), Some(other)) = (index.path_of(one), index.path_of(other)) else {
        return missing();
    };
    let page = compare(&one, &other, &Wanted::default())
        .map_err(|e| e.to_string())
        .and_then(|found| {
            let folder = tempfile::Builder::new().prefix("taut-serve-").tempdir();
            let folder = folder.map_err(|e| e.to_string())?;
            let page = write_comparison(&found, folder.path()).map_err(|e| e.to_string())?;
            std::fs::read(page).map_err(|e| e.to_string())
        });
    match page {
        Ok(body) => of_html(body),
        Err(e) => Reply::text("422 Unprocessable Content", &e),
    }
}

#[cfg(test)]
mod tests;
