//! `taut serve`: results folders in a browser. Reads, and changes nothing.
//!
//! Every address has the token in it that is printed at the start, and nobody is answered who came by a name. Reports are shown
//! in a sandbox of their own, as whoever made one may be a stranger; files are looked up by names that lead nowhere else.

mod index;
mod live;

use crate::exit::{self, Failure};
use crate::forward;
use crate::terminal::print;
use crate::terminal::secrets::{Secrets, is_no_name};
use index::{Index, Watching};
use serde_json::json;
use std::borrow::Cow;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use taut_experiment::compare::{Wanted, compare};
use taut_experiment::{InsidePath, write_comparison};
use taut_live::http::{Reply, Request, Server};

const PAGE: &str = include_str!("page.html");
/// What stands for the secrets in it.
const NONCE: &str = "{{nonce}}";
const TOKEN: &str = "{{token}}";
/// What stands for the addresses that are watched.
const WATCHED: &str = "{{watched}}";
/// The largest file that is handed out, bytes.
const MOST_FILE_BYTES: u64 = 256 << 20;
/// Files of a folder that are listed.
const MOST_FILES: usize = 5_000;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut serve
  taut serve results --listen 9200
  taut serve --watch 127.0.0.1:9100   and how a forwarder does that runs with --metrics 127.0.0.1:9100

Open the address that it prints. The list follows what is written below the folder: a running experiment shows how far it is, and run by
run what it measures. Tick two experiments to compare them. Ctrl-C ends it.")]
pub struct Arguments {
    /// Folder with results folders, or folders of them
    #[arg(default_value = "results")]
    dir: PathBuf,
    /// Port of this machine, or address and port; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value = "9200")]
    listen: String,
    /// Show a running forwarder, generator, chain or capture as well: the address of its --metrics; may be there more
    /// than once
    #[arg(long, value_name = "ADDRESS")]
    watch: Vec<String>,
    /// End when standard input closes: for programs that start it and must not leave it behind
    #[arg(long)]
    until_stdin_closes: bool,
    /// Print the address as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = &arguments.dir;
    if !dir.is_dir() {
        return Err(Failure::Input(format!(
            "{}: no folder; taut demo makes results/ with a first one",
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
    let secrets =
        Secrets::draw().map_err(|e| Failure::Missing(format!("a secret for the page: {e}")))?;
    let token = secrets.token.clone();
    let address = match arguments.listen.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => arguments.listen.clone(),
    };
    let shown = Arc::clone(&index);
    let server = Server::start("page", &address, move |request| {
        answer(request, &secrets, &shown, &watched)
    })?;
    let url = format!("http://{}/{token}/", server.address());
    if !server.address().ip().is_loopback() {
        print::note(
            "whoever has the address below sees all results, and others on the way may see it",
        );
    }
    let folders = index.len();
    print::line(forward::json_or_text(
        arguments.json,
        || json!({"event": "started", "url": url, "folders": folders}),
        || format!("{folders} results folders at {url}"),
    ));
    forward::wait(stop, &[], arguments.until_stdin_closes, None);
    Ok(())
}

/// Parts of a path behind the token, with what `%XX` stands for in place of it; none if it is not text.
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
    index: &Index,
    watched: &[SocketAddr],
) -> Reply {
    if !request.field("Host").is_some_and(is_no_name) {
        let text = "this page is there by the address only, and by localhost";
        return Reply::text("421 Misdirected Request", text);
    }
    if !matches!(request.method, "GET" | "HEAD") {
        return Reply {
            fields: Cow::Borrowed("Allow: GET, HEAD\r\n"),
            ..Reply::text("405 Method Not Allowed", "there is GET")
        };
    }
    let Some(parts) = parts(request.path) else {
        return Reply::text("400 Bad Request", "no path");
    };
    let words: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (Some(token), rest) = (words.first(), words.get(1..).unwrap_or_default()) else {
        return missing();
    };
    if !secrets.is_token(token) {
        return Reply::text(
            "403 Forbidden",
            "the address that taut serve printed has the token in it",
        );
    }
    let own = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'",
        nonce = secrets.nonce
    );
    // A report has its script and style in it, and is given nothing else: no other file, no cookie, no page around it.
    let sandbox = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";
    let (reply, policy) = match rest {
        [""] => (page(secrets, watched), own.as_str()),
        ["list.json"] => (of_json(index.as_json()), own.as_str()),
        ["files", folder] => (files(index, folder), own.as_str()),
        ["live", folder] => (experiment(index, folder), own.as_str()),
        ["watched", number] => (metrics(watched, number), own.as_str()),
        ["report", folder] => (file(index, folder, "report.html", false), sandbox),
        ["file", folder, name @ ..] => (file(index, folder, &name.join("/"), true), sandbox),
        ["compare", one, other] => (compared(index, one, other), sandbox),
        _ => (missing(), own.as_str()),
    };
    let fields = format!(
        "{}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: {policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
        reply.fields
    );
    Reply {
        fields: Cow::Owned(fields),
        ..reply
    }
}

fn missing() -> Reply {
    Reply::text("404 Not Found", "there is no such page")
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

/// How far an experiment is, and what its latest runs have measured.
fn experiment(index: &Index, folder: &str) -> Reply {
    let Some(path) = index.path_of(folder) else {
        return missing();
    };
    match live::experiment(&path) {
        Ok(found) => of_json(found.to_string()),
        Err(e) => Reply::text("422 Unprocessable Content", &e),
    }
}

/// What the program of that number gives out, which the page reads.
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

/// Hands out a file of a results folder: as a download, or to be shown.
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
                "{name} has more than {} MiB: copy it",
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

/// Compares two experiments, as `taut experiment compare` does, and shows the page of that.
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
