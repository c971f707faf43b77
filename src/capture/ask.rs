//! Sends requests to a running capture, and extracts packets from the disk folder of an ended one.

use super::{Asked, Command, Sort, flows};
use crate::exit::Failure;
use crate::terminal::conversation::Conversation;
use crate::terminal::{print, quantity, socket};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use taut_capture::capture::{Found, Status, TriggerStatus};
use taut_capture::dump::{Dumped, time_in_words};
use taut_capture::flows::By;
use taut_capture::ring::Count;
use taut_functions::record::{Answer, Request};

/// The control socket of a capture.
#[derive(Clone)]
pub struct Asking(PathBuf);

impl Asking {
    /// Returns the handle of the capture with the given control socket.
    pub fn of(socket: &Path) -> Self {
        Self(socket.to_path_buf())
    }

    /// Returns the selected capture: the one with the given socket, or the only capture of this user.
    fn meant(asked: &Asked) -> Result<Self, Failure> {
        let start = "start one with `taut capture INTERFACE`";
        let socket = socket::meant(asked.control.as_deref(), "capture", "capture", start)?;
        Ok(Self(socket))
    }

    /// Sends a request; returns the reply as a line and as parsed content.
    fn ask(&self, request: &Request) -> Result<(String, Answer), Failure> {
        let mut capture = Conversation::begin("capture", "record", &self.0)?;
        let line = capture.ask(request, &[])?;
        let answer: Answer = capture.read(&line)?;
        if !answer.ok {
            return Err(Failure::Input(answer.error.unwrap_or_default()));
        }
        Ok((line, answer))
    }

    /// Fires the trigger called `name`; `cause` is stored in the comment of the dump's file.
    pub fn fire(&self, name: &str, cause: &str) -> Result<(), Failure> {
        let (name, cause) = (name.to_string(), cause.to_string());
        self.ask(&Request::Trigger { name, cause }).map(drop)
    }

    /// Returns the state and counters of the capture.
    pub fn status(&self) -> Result<Status, Failure> {
        let (_, answer) = self.ask(&Request::Status {})?;
        let none = || Failure::Missing("the capture's reply has no status".to_string());
        answer.status.ok_or_else(none)
    }
}

pub(super) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Match(arguments) => super::matching::run(&arguments),
        Command::Query {
            filter,
            from,
            to,
            write,
            disk,
            asked,
        } => {
            let wanted = Wanted {
                filter,
                from_ns: from.unwrap_or(0),
                to_ns: to.unwrap_or(u64::MAX),
            };
            query(&wanted, &write, disk.as_deref(), &asked)
        }
        Command::List { asked } => list(&asked),
        Command::Status { asked } => {
            let (line, answer) = Asking::meant(&asked)?.ask(&Request::Status {})?;
            match (&answer.status, asked.json) {
                (Some(status), false) => show(status),
                _ => print::line(line),
            }
            Ok(())
        }
        Command::Flows { most, sort, asked } => list_flows(most, sort, &asked),
        Command::Trigger { name, cause, asked } => {
            let request = Request::Trigger { name, cause };
            let (line, _) = Asking::meant(&asked)?.ask(&request)?;
            if asked.json {
                print::line(line);
            }
            Ok(())
        }
        Command::Resize { size, asked } => {
            let request = Request::Resize { bytes: size.bytes };
            let (line, answer) = Asking::meant(&asked)?.ask(&request)?;
            match (answer.ring_bytes, asked.json) {
                (Some(bytes), false) => {
                    print::line(format!("the ring's size is {}", in_bytes(bytes)))
                }
                _ => print::line(line),
            }
            Ok(())
        }
        Command::Stop { asked } => stop(&asked),
    }
}

/// The output of `taut capture list --json`.
#[derive(Serialize, JsonSchema)]
pub struct Dumps<'a> {
    dumps: Vec<&'a Dumped>,
}

fn list(asked: &Asked) -> Result<(), Failure> {
    let status = Asking::meant(asked)?.status()?;
    if asked.json {
        let dumps = status.dumps.iter().chain(&status.dumping);
        print::json(&Dumps {
            dumps: dumps.collect(),
        });
        return Ok(());
    }
    for dump in status.dumps.iter().chain(&status.dumping) {
        print::line(dumped(dump));
    }
    Ok(())
}

fn list_flows(most: usize, sort: Sort, asked: &Asked) -> Result<(), Failure> {
    let by = match sort {
        Sort::Bytes => By::Bytes,
        Sort::Packets => By::Packets,
    };
    let request = Request::Flows { most, by };
    let (line, answer) = Asking::meant(asked)?.ask(&request)?;
    match (&answer.flows, asked.json) {
        (Some(found), false) => flows::show(found),
        _ => print::line(line),
    }
    Ok(())
}

/// The output of `taut capture stop --json`: the capture's counts at the moment of the request.
#[derive(Serialize, JsonSchema)]
pub struct Stopped {
    /// Process ID of the capture.
    process: u32,
    /// Packets that were stored in memory.
    kept: Count,
    /// Packets for which the ring had no free bucket.
    lost: Count,
    /// Time since the capture began, in seconds; none if an earlier version captures.
    seconds: Option<f64>,
}

impl Stopped {
    fn of(status: &Status) -> Self {
        let ns = status.now_ns.saturating_sub(status.began_ns);
        Self {
            process: status.process,
            kept: status.kept,
            lost: status.lost,
            seconds: (status.began_ns > 0).then_some(ns as f64 / 1e9),
        }
    }
}

fn stop(asked: &Asked) -> Result<(), Failure> {
    let asking = Asking::meant(asked)?;
    let status = asking.status()?;
    let process = i32::try_from(status.process)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let Some(process) = process else {
        return Err(Failure::Missing(
            "the capture reports no valid process ID".to_string(),
        ));
    };
    rustix::process::kill_process(process, rustix::process::Signal::INT)
        .map_err(|e| Failure::Missing(format!("cannot stop process {}: {e}", status.process)))?;
    if asked.json {
        print::json(&Stopped::of(&status));
    }
    Ok(())
}

/// The selection of packets to extract from a capture.
struct Wanted {
    filter: String,
    from_ns: u64,
    to_ns: u64,
}

fn query(wanted: &Wanted, write: &Path, disk: Option<&Path>, asked: &Asked) -> Result<(), Failure> {
    let to_output = write.as_os_str() == "-";
    // The capture's process writes the file. For standard output it writes into this private folder, and the file is
    // then copied to the output.
    let folder = taut_host::private::scratch().map_err(|e| {
        Failure::Missing(format!("cannot create a folder for the packets found: {e}"))
    })?;
    let file = match to_output {
        true => folder.path().join("found.pcapng"),
        false => std::path::absolute(write)
            .map_err(|e| Failure::of_file(&e, format!("{}: {e}", write.display())))?,
    };
    let found = match disk {
        Some(disk) => {
            let filter = taut_capture::filter::Filter::new(&wanted.filter)
                .map_err(|e| Failure::Input(e.to_string()))?;
            taut_capture::capture::query_disk(disk, &filter, wanted.from_ns, wanted.to_ns, &file)
                .map_err(Failure::Input)?
        }
        None => {
            let request = Request::Query {
                filter: wanted.filter.clone(),
                from_ns: wanted.from_ns,
                to_ns: wanted.to_ns,
                file: file.clone(),
            };
            let (_, answer) = Asking::meant(asked)?.ask(&request)?;
            let none = || Failure::Missing("the capture's reply has no query result".to_string());
            answer.found.ok_or_else(none)?
        }
    };
    if to_output {
        let copied = std::fs::File::open(&file).and_then(|mut file| {
            let mut output = std::io::stdout().lock();
            std::io::copy(&mut file, &mut output)?;
            output.flush()
        });
        copied.map_err(|e| Failure::Missing(format!("standard output: {e}")))?;
    }
    let text = match asked.json {
        true => serde_json::to_string(&found).map_err(|e| Failure::Missing(e.to_string()))?,
        false => found_in_words(&found),
    };
    match to_output {
        true => print::note(text),
        false => print::line(text),
    }
    Ok(())
}

fn found_in_words(found: &Found) -> String {
    let missed = match found.missed {
        0 => String::new(),
        missed => format!(", {missed} were overwritten during the query"),
    };
    format!(
        "{} packets found, {} searched{missed}; {}",
        found.packets,
        found.looked_at,
        in_bytes(found.file_bytes)
    )
}

/// Formats a line about the packets captured between the states `before` and `now`.
pub fn state(before: &Status, now: &Status) -> String {
    let (packets, bytes) = now.kept_per_second(before);
    let lost = now.lost.packets - before.lost.packets;
    let not_on_disk = match not_on_disk(now).saturating_sub(not_on_disk(before)) {
        0 => String::new(),
        count => format!("; {count} not on disk"),
    };
    let not_dumped = match not_dumped(now).saturating_sub(not_dumped(before)) {
        0 => String::new(),
        count => format!("; {count} not in dumps"),
    };
    format!(
        "{}, {}/s kept; covers the last {}; {lost} lost; {} dumps{not_dumped}{not_on_disk}",
        quantity::rate(packets),
        in_bytes(bytes as u64),
        looks_back(now),
        now.dumps_begun()
    )
}

/// Returns the number of packets that are missing on disk, because their memory was reused before they were written, or
/// because writing failed.
pub fn not_on_disk(status: &Status) -> u64 {
    status.disk.as_ref().map_or(0, |it| it.missed + it.lost)
}

/// Returns the number of packets that triggers selected but the capture could not write.
pub fn not_dumped(status: &Status) -> u64 {
    status.triggers.iter().map(|it| it.lost).sum()
}

fn looks_back(status: &Status) -> String {
    match status.oldest_ns {
        Some(_) => format!("{:.1} s", status.looks_back_seconds()),
        None => "0 s".to_string(),
    }
}

/// Formats a line about a dump, the file that a trigger has written.
pub fn dumped(dump: &Dumped) -> String {
    let mut text = format!(
        "{} {}: {} packets",
        time_in_words(dump.fired_ns),
        dump.trigger,
        dump.packets
    );
    if let Some(file) = &dump.file {
        text += &format!(", {} in {}", in_bytes(dump.file_bytes), file.display());
    }
    for (count, what) in [
        (dump.missed, "overwritten before the dump read them"),
        (dump.cut_off, "skipped by the cutoff"),
        (dump.lost, "not written"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    if let Some(error) = &dump.error {
        text += &format!(": {error}");
    }
    text
}

fn in_bytes(bytes: u64) -> String {
    taut_measure::quantity::bytes(bytes as f64)
}

fn show(status: &Status) {
    print::line(format!(
        "{} of memory, up to {}; covers the last {}",
        in_bytes(status.ring_bytes),
        in_bytes(status.most_bytes),
        looks_back(status)
    ));
    let counted = [
        ("kept", status.kept),
        ("overwritten since", status.overwritten),
        ("lost", status.lost),
    ];
    let counted = counted.map(|(what, count)| {
        [
            what.to_string(),
            count.packets.to_string(),
            in_bytes(count.bytes),
        ]
    });
    let not_looked_at = (status.not_looked_at > 0).then(|| {
        [
            "missed by triggers".to_string(),
            status.not_looked_at.to_string(),
            String::new(),
        ]
    });
    print::table(
        ["packets", "count", "on the wire"],
        counted.into_iter().chain(not_looked_at),
    );
    show_triggers(&status.triggers);
    show_analysers(status);
    if let Some(after) = &status.looked_after {
        let us = |ns: u64| ns as f64 / 1e3;
        print::line(format!(
            "triggers evaluated after {:.1} us (median), {:.1} us (99 %), {:.1} us (max)",
            us(after.p50_ns),
            us(after.p99_ns),
            us(after.most_ns)
        ));
    }
    for trouble in &status.trouble {
        print::line(trouble);
    }
}

fn show_triggers(triggers: &[TriggerStatus]) {
    if !triggers.is_empty() {
        let rows = triggers.iter().map(|it| {
            [
                it.name.clone(),
                it.fired.to_string(),
                it.begun.to_string(),
                it.limited.to_string(),
                it.written.to_string(),
                it.lost.to_string(),
            ]
        });
        print::table(
            [
                "trigger",
                "fired",
                "dumps",
                "over its limit",
                "written",
                "not written",
            ],
            rows,
        );
    }
}

fn show_analysers(status: &Status) {
    if !status.analysers.is_empty() {
        let rows = status.analysers.iter().map(|it| {
            [
                it.name.clone(),
                it.packets.to_string(),
                it.missed.to_string(),
                it.failed.to_string(),
                format!("{} of {}", it.known, it.room),
                it.forgotten.to_string(),
                it.fired.to_string(),
            ]
        });
        let head = [
            "analyser",
            "packets",
            "missed",
            "failed",
            "flows",
            "forgotten",
            "fired",
        ];
        print::table(head, rows);
    }
    for it in &status.analysers {
        let counts = it
            .counts
            .iter()
            .map(|(name, count)| format!("{count} {name}"));
        let said: Vec<_> = counts.chain(it.error.clone()).collect();
        if !said.is_empty() {
            print::line(format!("{}: {}", it.name, said.join(", ")));
        }
    }
}
