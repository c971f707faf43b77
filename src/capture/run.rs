//! Runs a capture until it is stopped.

use super::ask::{Asking, dumped, not_dumped, not_on_disk, state};
use super::live::{self, Live};
use super::watch::{self, Watched};
use super::{Capture, Stamps, page};
use crate::exit::{self, Failure};
use crate::forward::{at_ports, choose_cores};
use crate::terminal::print;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_capture::capture::Status;
use taut_engine::{AtPort, Chain, End, Exchange, Stage, Start, Team};
use taut_functions::FUNCTIONS;
use taut_port::{PortCounters, PortSpec};
use taut_settings::Size;
use taut_sys::Clock;

/// The interval at which the stop flag is checked.
const LOOK: Duration = Duration::from_millis(20);
/// The timeout for the worker to report that it has ended.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn run(capture: &Capture) -> Result<(), Failure> {
    let signalled = exit::stop_flag()?;
    let control = match &capture.control {
        Some(path) => path.clone(),
        None => own_socket()?,
    };
    let chain = Arc::new(chain(capture, &control)?);
    let asking = Asking::of(&control);
    let watched = Arc::new(Watched::new(asking.clone(), Arc::clone(&chain)));
    let _metrics = watch::metrics(capture.metrics.as_deref(), &watched)?;
    let _page = page::serve(capture.page.as_deref(), &watched)?;
    // Standard output is reserved for packets if they are requested there.
    let to_output = capture
        .write
        .as_ref()
        .is_some_and(|it| it.as_os_str() == "-");
    let is_live = live::is_wanted(capture);
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicBool::new(false));
    let start = start_of(is_live, signalled, &stop, &ended);
    let team = Team::start(&chain, "capture", &start, None)?;
    watched.runs(team.exchange());
    let run = Run {
        capture,
        chain: &chain,
        asking: &asking,
        exchange: team.exchange(),
        ended: &ended,
        begun: Instant::now(),
        to_output,
    };
    if !capture.json && !capture.quiet && !is_live {
        run.say(&format!(
            "capturing; control it with --control {}",
            control.display()
        ));
    }
    let dashboard = is_live.then(|| Live::open(watched.title())).flatten();
    let (before, told) = run.watch(signalled, dashboard)?;
    stop.store(true, Ordering::Relaxed);
    // The last query happens before the function ends, as the function does not reply afterwards.
    let last = match asking.status() {
        Ok(last) => last,
        Err(_) if run.has_ended() => before,
        Err(failure) => return Err(failure),
    };
    let (not_on_disk, not_dumped) = (not_on_disk(&last), not_dumped(&last));
    let (ends, outcomes) = team.join();
    let ports = Ports::of(&chain, &run.exchange);
    run.print_result(last, &outcomes, &ports, told)?;
    warn_of_losses(not_on_disk, not_dumped, &ports);
    if let Some(failure) = Failure::of_dead_threads() {
        return Err(failure);
    }
    for end in ends {
        match end {
            Some(End::Broken(port, why)) => return Err(Failure::of_port(&chain.ports[port], &why)),
            None => return Err(Failure::Missing("a worker died".to_string())),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the worker's start settings: the flag `stop` ends the worker, and the worker sets `ended` when it ends.
fn start_of(
    is_live: bool,
    signalled: &'static AtomicBool,
    stop: &Arc<AtomicBool>,
    ended: &Arc<AtomicBool>,
) -> Start {
    let at_end = {
        let ended = Arc::clone(ended);
        move |_: &End| ended.store(true, Ordering::Release)
    };
    Start {
        clock: Clock::calibrate(Duration::from_millis(20)),
        stop: Arc::clone(stop),
        given_up: signalled,
        // A dashboard has no space for the text.
        tell: Arc::new(move |text| {
            if !is_live {
                print::note(text);
            }
        }),
        tell_link: Arc::new(move |port, link| {
            if !is_live {
                print::link(port, link);
            }
        }),
        at_end: Arc::new(at_end),
    }
}

/// A capture whose worker runs.
struct Run<'a> {
    capture: &'a Capture,
    chain: &'a Chain,
    asking: &'a Asking,
    exchange: Arc<Exchange>,
    /// Flag that the worker sets when it ends.
    ended: &'a AtomicBool,
    begun: Instant,
    /// True if packets are written to standard output.
    to_output: bool,
}

impl Run<'_> {
    fn say(&self, text: &str) {
        match self.to_output {
            true => print::note(text),
            false => print::line(text),
        }
    }

    /// Waits for at most [`PATIENCE`], and returns true if the worker has ended by itself, as it does at the end of
    /// captured files. Requests get no reply after the worker has ended.
    fn has_ended(&self) -> bool {
        let asked = Instant::now();
        while !self.ended.load(Ordering::Acquire) && asked.elapsed() < PATIENCE {
            std::thread::sleep(LOOK);
        }
        self.ended.load(Ordering::Acquire)
    }

    /// Prints the capture's state each second until the capture has to end. Returns the last state, and the number of
    /// dumps that were printed.
    ///
    /// # Errors
    /// The capture does not reply.
    fn watch(
        &self,
        signalled: &AtomicBool,
        mut dashboard: Option<Live>,
    ) -> Result<(Status, u64), Failure> {
        let mut before = self.asking.status()?;
        let mut told = 0;
        let mut seconds = 1;
        while !signalled.load(Ordering::Relaxed) && !self.ended.load(Ordering::Acquire) {
            let elapsed = self.begun.elapsed();
            let end = self.capture.seconds;
            if end.is_some_and(|end| elapsed.as_secs_f64() >= end) {
                break;
            }
            if elapsed < Duration::from_secs(seconds) || self.capture.quiet {
                if let Some(dashboard) = &mut dashboard {
                    if dashboard.wait(LOOK) {
                        break;
                    }
                } else {
                    std::thread::sleep(LOOK);
                }
                continue;
            }
            seconds += 1;
            let now = match self.asking.status() {
                Ok(now) => now,
                Err(_) if self.has_ended() => break,
                Err(failure) => return Err(failure),
            };
            let ports = Ports::of(self.chain, &self.exchange);
            if let Some(dashboard) = &mut dashboard {
                dashboard.show(&before, &now, &ports);
            } else if self.capture.json {
                self.say(&json(&now, &ports)?);
            } else {
                self.say(&(state(&before, &now) + &ports.in_words()));
                told = tell_dumps(&now, told, &|text| self.say(text));
            }
            before = now;
        }
        Ok((before, told))
    }

    /// Prints the capture's last state, with the counters of its worker.
    fn print_result(
        &self,
        mut last: Status,
        outcomes: &[(&'static str, u64)],
        ports: &Ports,
        told: u64,
    ) -> Result<(), Failure> {
        let count = |name: &str| {
            let of_name = outcomes.iter().filter(|it| it.0 == name);
            of_name.map(|it| it.1).sum::<u64>()
        };
        let (recorded, lost) = (count("recorded"), count("not_recorded"));
        if self.capture.json {
            (last.kept.packets, last.lost.packets) = (recorded, lost);
            self.say(&json(&last, ports)?);
            return Ok(());
        }
        tell_dumps(&last, told, &|text| self.say(text));
        let all_lost = lost + ports.lost();
        let share = match recorded + all_lost {
            0 => 0.0,
            all => 100.0 * all_lost as f64 / all as f64,
        };
        let seconds = self.begun.elapsed().as_secs_f64();
        self.say(&format!(
            "{recorded} packets kept in {seconds:.1} s, {all_lost} lost ({share:.3} %){}",
            ports.in_words()
        ));
        Ok(())
    }
}

/// Warns of packets that are missing on disk or in dumps, and of frames that were too long.
fn warn_of_losses(not_on_disk: u64, not_dumped: u64, ports: &Ports) {
    if not_on_disk > 0 {
        print::note(format_args!(
            "{not_on_disk} packets are not on disk, because it was too slow or writing failed: a larger --ring buffers longer, --snap and \
             --zstd write less"
        ));
    }
    if not_dumped > 0 {
        print::note(format_args!(
            "{not_dumped} packets that triggers selected could not be written: free disk space, or write less with \
             --snap, --cutoff or --zstd"
        ));
    }
    if ports.too_long > 0 {
        print::note(
            "frames longer than the port's buffers were not captured: if the interface merges segments, turn that off with \
             ethtool -K INTERFACE gro off gso off tso off",
        );
    }
}

/// Counters of packets that the ports lost before they reached the capture.
pub struct Ports {
    pub each: Vec<AtPort>,
    overrun: u64,
    malformed: u64,
    too_long: u64,
}

impl Ports {
    pub fn of(chain: &Chain, exchange: &Exchange) -> Self {
        let each = at_ports(chain, exchange);
        let sum = |of: fn(&PortCounters) -> u64| each.iter().map(|it| of(&it.counters)).sum();
        Self {
            overrun: sum(|it| it.rx_overrun),
            malformed: sum(|it| it.rx_malformed),
            too_long: sum(|it| it.rx_too_long),
            each,
        }
    }

    pub fn lost(&self) -> u64 {
        self.overrun + self.malformed + self.too_long
    }

    fn in_words(&self) -> String {
        let kinds = [
            (self.overrun, "because the port's ring was full"),
            (self.malformed, "with invalid descriptors"),
            (self.too_long, "longer than the port's buffers"),
        ];
        let kinds = kinds.iter().filter(|it| it.0 > 0);
        let texts: Vec<_> = kinds
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        match texts.is_empty() {
            true => String::new(),
            false => format!("; lost at the ports: {}", texts.join(", ")),
        }
    }
}

/// A line of JSON: the state of the capture, and the counters of its ports.
#[derive(Serialize, JsonSchema)]
pub struct Line<'a> {
    #[serde(flatten)]
    status: &'a Status,
    ports: &'a [AtPort],
}

pub fn json(status: &Status, ports: &Ports) -> Result<String, Failure> {
    let line = Line {
        status,
        ports: &ports.each,
    };
    serde_json::to_string(&line).map_err(|e| Failure::Missing(e.to_string()))
}

/// Prints the completed dumps except for the first `told`, which are already printed; returns the number of completed
/// dumps.
fn tell_dumps(status: &Status, told: u64, say: &impl Fn(&str)) -> u64 {
    let begun = status.dumps_begun();
    let ended = begun - (status.dumping.len() as u64).min(begun);
    let new = (ended.saturating_sub(told) as usize).min(status.dumps.len());
    for dump in &status.dumps[status.dumps.len() - new..] {
        say(&dumped(dump));
    }
    for trouble in &status.trouble {
        print::note(trouble);
    }
    ended
}

/// Returns the path of a socket for commands of other processes, in a folder of this user.
fn own_socket() -> Result<PathBuf, Failure> {
    let folder = taut_host::private::run_folder();
    let folder = folder.map_err(|e| {
        Failure::Missing(format!(
            "cannot create a folder for the control socket: {e}"
        ))
    })?;
    Ok(folder.join(format!("capture-{}.sock", std::process::id())))
}

/// Builds a chain of one function, which stores packets and forwards none.
fn chain(capture: &Capture, control: &std::path::Path) -> Result<Chain, Failure> {
    let ports = ports(capture)?;
    let function = Stage {
        name: "record".to_string(),
        place: None,
        chain: None,
        replicas: None,
        settings: settings(capture, control, &ports)?,
        catalog: FUNCTIONS,
    };
    let mut chain = Chain::new(ports, vec![function]);
    if let Some(wait) = &capture.wait {
        chain.wait = *wait;
    }
    chain.core = capture.core;
    chain.workers = capture.workers.unwrap_or(1);
    choose_cores(&mut chain)?;
    chain.check().map_err(Failure::Input)?;
    Ok(chain)
}

fn ports(capture: &Capture) -> Result<Vec<PortSpec>, Failure> {
    let mut ports = Vec::new();
    for interface in &capture.interfaces {
        let stamps = match capture.stamps {
            Stamps::Ticks => "",
            Stamps::Kernel => ",stamps=kernel",
        };
        ports.push(PortSpec::parse(&format!(
            "af_packet:{interface},outgoing=yes{stamps}"
        ))?);
    }
    for spec in &capture.port {
        ports.push(PortSpec::parse(spec)?);
    }
    if ports.is_empty() {
        let text = "no capture source: give interfaces, or ports with --port".to_string();
        return Err(Failure::Input(text));
    }
    Ok(ports)
}

/// Returns the settings of the function that stores the packets of `ports`.
fn settings(
    capture: &Capture,
    control: &std::path::Path,
    ports: &[PortSpec],
) -> Result<toml::Table, Failure> {
    let names = ports.iter().map(|it| it.text().to_string().into());
    let mut table = toml::Table::new();
    table.insert(
        "interfaces".to_string(),
        toml::Value::Array(names.collect()),
    );
    table.insert("drop".to_string(), true.into());
    table.insert("control".to_string(), text(control)?);
    let path = |path: &PathBuf| text(path);
    let mut put = |key: &str, value: Option<toml::Value>| {
        if let Some(value) = value {
            table.insert(key.to_string(), value);
        }
    };
    put("ring", capture.ring.as_ref().map(size));
    put("most", capture.most.as_ref().map(size));
    put("snap", capture.snap.map(|it| i64::from(it).into()));
    put("dump", capture.dump.as_ref().map(path).transpose()?);
    put("file", capture.write.as_ref().map(path).transpose()?);
    put("roll_size", capture.roll_size.as_ref().map(size));
    put("roll_time", capture.roll_time.as_ref().map(time));
    put("disk", capture.disk.as_ref().map(path).transpose()?);
    put("disk_size", capture.disk_size.as_ref().map(size));
    put("zstd", capture.zstd.then_some(true.into()));
    put("flows", capture.flows.map(|it| i64::from(it).into()));
    let triggers = triggers(capture);
    if !triggers.is_empty() {
        put("trigger", Some(toml::Value::Array(triggers)));
    }
    let analysers = analysers(capture)?;
    if !analysers.is_empty() {
        put("analyser", Some(toml::Value::Array(analysers)));
    }
    Ok(table)
}

fn size(size: &Size) -> toml::Value {
    toml::Value::Integer(i64::try_from(size.bytes).unwrap_or(i64::MAX))
}

fn time(time: &Duration) -> toml::Value {
    toml::Value::String(format!("{}ns", time.as_nanos()))
}

fn triggers(capture: &Capture) -> Vec<toml::Value> {
    let mut triggers = Vec::new();
    let cutoff = capture.cutoff.as_ref().map(size);
    let mut trigger = |name: &str, keys: &[(&str, toml::Value)]| {
        let mut table = toml::Table::new();
        table.insert("name".to_string(), name.into());
        let times = [("before", &capture.before), ("after", &capture.after)];
        let given = times
            .iter()
            .filter_map(|(key, it)| it.as_ref().map(|it| (*key, time(it))));
        let all = given
            .chain(cutoff.clone().map(|it| ("cutoff", it)))
            .chain(keys.iter().cloned());
        table.extend(all.map(|(key, value)| (key.to_string(), value)));
        triggers.push(toml::Value::Table(table));
    };
    // A file without triggers contains all packets, as with tcpdump.
    let writes_all = capture.write.is_some() && capture.trigger.is_empty();
    if capture.filter.is_some() || writes_all {
        let filter = capture.filter.clone().unwrap_or_default();
        trigger("all", &[("always", true.into()), ("when", filter.into())]);
    }
    let keep = capture.keep.clone().unwrap_or_default();
    for text in &capture.trigger {
        let (name, expression) = text.split_once('=').unwrap_or((text, ""));
        let condition: (&str, toml::Value) = match expression.trim() {
            "" => ("asked", true.into()),
            expression => ("when", expression.into()),
        };
        trigger(name, &[condition, ("keep", keep.clone().into())]);
    }
    triggers
}

fn analysers(capture: &Capture) -> Result<Vec<toml::Value>, Failure> {
    let analysers = capture.analyse.iter().map(|it| {
        let file = ("file".to_string(), text(it)?);
        Ok(toml::Value::Table(toml::Table::from_iter([file])))
    });
    analysers.collect()
}

fn text(path: &std::path::Path) -> Result<toml::Value, Failure> {
    let text = path
        .to_str()
        .ok_or_else(|| Failure::Input(format!("{}: expected a path in UTF-8", path.display())))?;
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        capture: Capture,
    }

    fn triggers_of(arguments: &[&str]) -> Vec<toml::Value> {
        let line = [&["capture", "eth0"], arguments].concat();
        triggers(&CommandLine::try_parse_from(line).unwrap().capture)
    }

    #[test]
    fn triggers_write_all_packets_if_option_keep_is_absent() {
        let two = ["--trigger", "big=icmp", "--trigger", "asked"];
        let options: [&[&str]; 2] = [&[], &["--keep", "udp"]];
        for (keep, want) in options.into_iter().zip(["", "udp"]) {
            let all = triggers_of(&[&two, keep].concat());
            let [big, asked] = &all[..] else {
                panic!("{all:?}")
            };
            assert_eq!(big["when"].as_str(), Some("icmp"));
            assert_eq!(asked["asked"].as_bool(), Some(true));
            for trigger in [big, asked] {
                assert_eq!(trigger["keep"].as_str(), Some(want));
            }
        }
    }

    #[test]
    fn option_keep_is_independent_of_option_filter() {
        let all = triggers_of(&["--filter", "tcp", "--trigger", "a", "--keep", "udp"]);
        assert_eq!(all[0]["when"].as_str(), Some("tcp"));
        assert!(all[0].get("keep").is_none());
    }
}
