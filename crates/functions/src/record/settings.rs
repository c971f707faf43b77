//! The settings of the recording.

use super::analyser;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_capture::analyser::MOST_FLOWS as MOST_ANALYSED_FLOWS;
use taut_capture::capture::{self, Capture};
use taut_capture::dump::{Roll, Target};
use taut_capture::filter::Filter;
use taut_capture::flows::{BYTES_PER_FLOW, MOST_FLOWS};
use taut_capture::keeper;
use taut_capture::record::LONGEST_BYTES;
use taut_capture::ring::BUCKET_BYTES;
use taut_capture::trigger::{Trigger, When, flags_of};
use taut_function::{SettingsError, each};
use taut_lua::AnalyserScript;
use taut_port::PortError;
use taut_settings::{Size, duration};
use taut_sys::available_bytes;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    ring: Option<Size>,
    most: Option<Size>,
    bucket: Option<Size>,
    snap: Option<u32>,
    #[serde(default)]
    drop: bool,
    dump: Option<PathBuf>,
    file: Option<PathBuf>,
    roll_size: Option<Size>,
    roll_time: Option<String>,
    disk: Option<PathBuf>,
    disk_size: Option<Size>,
    #[serde(default)]
    zstd: bool,
    #[serde(default)]
    flows: usize,
    control: Option<PathBuf>,
    #[serde(default)]
    interfaces: Vec<String>,
    classic: Option<String>,
    #[serde(default)]
    look: Look,
    #[serde(default)]
    trigger: Vec<toml::Table>,
    #[serde(default)]
    analyser: Vec<toml::Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnalyserSettings {
    file: PathBuf,
    /// The filter expression of the packets that the analyser receives.
    when: Option<String>,
    flows: Option<usize>,
    /// The table of settings that the script receives.
    #[serde(default)]
    settings: toml::Table,
}

/// The behaviour of the thread that examines packets when none have arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Look {
    /// The thread sleeps between two checks for packets.
    #[default]
    Rest,
    /// The thread polls the ring without sleeping.
    Poll,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerSettings {
    name: String,
    /// The filter expression of the packets that the trigger observes.
    when: Option<String>,
    /// The number of matching packets in the period `over` above which the trigger fires.
    more_than: Option<u64>,
    /// The time without a matching packet after which the trigger fires.
    silence: Option<String>,
    /// The delay after its timestamp above which a matching packet counts as late.
    late: Option<String>,
    /// The verdict that matching packets got from an earlier function: `dropped` or `punted`.
    fate: Option<String>,
    /// The name of a count of the chain; the trigger fires when this count grows.
    counter: Option<String>,
    #[serde(default)]
    asked: bool,
    #[serde(default)]
    always: bool,
    over: Option<String>,
    keep: Option<String>,
    before: Option<String>,
    after: Option<String>,
    cutoff: Option<Size>,
    most_per_minute: Option<u32>,
}

/// The validated settings of the recording.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    ring_bytes: Option<u64>,
    most_bytes: Option<u64>,
    bucket_bytes: usize,
    snap_bytes: usize,
    /// True if the function drops packets after it has recorded them.
    pub drops: bool,
    target: Option<Target>,
    roll: Roll,
    zstd: bool,
    disk: Option<keeper::Settings>,
    flows: usize,
    /// The path of the control socket; none if there is no socket.
    pub control: Option<PathBuf>,
    interfaces: Vec<String>,
    classic: Option<Duration>,
    look: Look,
    triggers: Vec<Trigger>,
    analysers: Vec<analyser::Checked>,
}

/// The number of ports that files distinguish if the ports have no names.
const PORTS: usize = 16;
const MOST_TRIGGERS: usize = 4096;
/// The limit on analysers, each of which has a thread.
const MOST_ANALYSERS: usize = 16;
/// The default number of flows of an analyser.
const ANALYSED_FLOWS: usize = 100_000;
const SMALLEST_BUCKET: u64 = 1 << 16;
const BEFORE: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(1);
const MOST_PER_MINUTE: u32 = 60;
/// The longest time for which a bucket is withheld from readers.
const LONGEST_HOLD: Duration = Duration::from_secs(10);
/// The divisor for the default size of a ring: the free memory is divided by it.
const SHARE_OF_FREE: u64 = 2;

fn wrong<T>(text: String) -> Result<T, SettingsError> {
    Err(SettingsError(text))
}

fn time(key: &str, text: Option<String>) -> Result<Option<Duration>, SettingsError> {
    let Some(text) = text else {
        return Ok(None);
    };
    match duration(&text) {
        Some(time) => Ok(Some(time)),
        None => wrong(format!(
            "{key} = \"{text}\": expected a time such as \"500ms\""
        )),
    }
}

fn made(key: &str, text: &str) -> Result<Filter, SettingsError> {
    Filter::new(text).map_err(|e| SettingsError(format!("{key}: {e}")))
}

/// Checks that the size of a bucket is in its range, and that the ring has space for two buckets and fits into free
/// memory.
fn check_ring(ring_bytes: Option<u64>, bucket_bytes: u64) -> Result<(), SettingsError> {
    if !(SMALLEST_BUCKET..=1 << 30).contains(&bucket_bytes) || !bucket_bytes.is_multiple_of(8) {
        return wrong(format!(
            "bucket: {bucket_bytes} bytes: expected 64 kB to 1 GB, a multiple of 8"
        ));
    }
    if let Some(ring) = ring_bytes {
        if ring < 2 * bucket_bytes {
            return wrong(format!(
                "ring: {ring} bytes are less than two buckets of {bucket_bytes}: use a larger ring, or smaller buckets"
            ));
        }
        let free = available_bytes();
        if free.is_some_and(|free| ring > free) {
            let free = free.unwrap_or(0) >> 20;
            let ring = ring >> 20;
            return wrong(format!(
                "ring: {ring} MB, but {free} MB of memory are free: use a smaller ring"
            ));
        }
    }
    Ok(())
}

/// Returns the destination of dumps: a folder, a file, or none.
fn target(dump: Option<PathBuf>, file: Option<PathBuf>) -> Result<Option<Target>, SettingsError> {
    Ok(match (dump, file) {
        (Some(_), Some(_)) => return wrong("dump and file: give only one of them".to_string()),
        (Some(folder), None) => Some(Target::Folder(folder)),
        (None, Some(file)) if file == Path::new("-") => Some(Target::Output),
        (None, Some(file)) => Some(Target::File(file)),
        (None, None) => None,
    })
}

/// Returns the settings of the packet store on disk; none if packets are not stored on disk.
fn disk(
    folder: Option<PathBuf>,
    size: Option<Size>,
    zstd: bool,
) -> Result<Option<keeper::Settings>, SettingsError> {
    match (folder, size) {
        (Some(folder), Some(size)) => Ok(Some(keeper::Settings {
            folder,
            bytes: size.bytes,
            zstd,
        })),
        (None, None) => Ok(None),
        _ => wrong("disk and disk_size: give both or neither".to_string()),
    }
}

/// Checks that the number of flows is within its limit, and that free memory has space for the flows in addition to the
/// ring.
fn check_flows(flows: usize, ring_bytes: Option<u64>) -> Result<(), SettingsError> {
    if flows > MOST_FLOWS {
        return wrong(format!("flows = {flows}: expected at most {MOST_FLOWS}"));
    }
    let flows_bytes = (flows * BYTES_PER_FLOW) as u64;
    let free = available_bytes();
    if free.is_some_and(|free| flows_bytes.saturating_add(ring_bytes.unwrap_or(0)) > free) {
        let free = free.unwrap_or(0) >> 20;
        let flows_bytes = flows_bytes >> 20;
        return wrong(format!(
            "flows = {flows}: they need {flows_bytes} MB in addition to the ring, but {free} MB of memory are free: use fewer"
        ));
    }
    Ok(())
}

/// Returns the triggers; no two of them have the same name.
fn triggers(written: Vec<toml::Table>) -> Result<Vec<Trigger>, SettingsError> {
    if written.len() > MOST_TRIGGERS {
        return wrong(format!("trigger: more than {MOST_TRIGGERS}"));
    }
    let triggers = each("trigger", written, |it: TriggerSettings| it.check())?;
    for (at, trigger) in triggers.iter().enumerate() {
        if triggers[..at].iter().any(|it| it.name == trigger.name) {
            return wrong(format!("trigger: two are called {}", trigger.name));
        }
    }
    Ok(triggers)
}

fn check_name(name: &str) -> Result<(), SettingsError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(is_name) {
        return wrong(format!(
            "name = \"{name}\": expected up to 64 letters, digits, -, _ and ., as names of files are made of it"
        ));
    }
    Ok(())
}

/// Returns the packet flags of the verdict `fate`; none if `fate` is none.
fn flags(fate: Option<&str>) -> Result<Option<u16>, SettingsError> {
    let Some(fate) = fate else {
        return Ok(None);
    };
    match flags_of(fate) {
        Some(flags) => Ok(Some(flags)),
        None => wrong(format!(
            "fate = \"{fate}\": expected \"dropped\" or \"punted\""
        )),
    }
}

/// Returns the time for which buckets are withheld from readers; none if the setting is absent.
fn hold(written: Option<String>) -> Result<Option<Duration>, SettingsError> {
    let classic = time("classic", written)?;
    if classic.is_some_and(|it| it.is_zero() || it > LONGEST_HOLD) {
        return wrong(format!(
            "classic: expected a time up to {} s, such as \"300ms\"",
            LONGEST_HOLD.as_secs()
        ));
    }
    Ok(classic)
}

impl Settings {
    pub fn check(self) -> Result<Checked, SettingsError> {
        let bucket_bytes = self.bucket.map_or(BUCKET_BYTES as u64, |it| it.bytes);
        let ring_bytes = self.ring.map(|it| it.bytes);
        let most_bytes = self.most.map(|it| it.bytes);
        check_ring(ring_bytes, bucket_bytes)?;
        let snap_bytes = self.snap.unwrap_or(LONGEST_BYTES);
        if snap_bytes == 0 || snap_bytes > LONGEST_BYTES {
            return wrong(format!(
                "snap = {snap_bytes}: expected 1 to {LONGEST_BYTES} bytes"
            ));
        }
        let target = target(self.dump, self.file)?;
        let roll = Roll {
            bytes: self.roll_size.map(|it| it.bytes),
            time: time("roll_time", self.roll_time)?,
        };
        if roll != Roll::default() && !matches!(target, Some(Target::Folder(_))) {
            return wrong("roll_size and roll_time: only with dump, a folder".to_string());
        }
        let disk = disk(self.disk, self.disk_size, self.zstd)?;
        if self.zstd && disk.is_none() && !matches!(target, Some(Target::Folder(_))) {
            return wrong(
                "zstd: only with dump or disk; a file is compressed if its name ends in .zst"
                    .to_string(),
            );
        }
        check_flows(self.flows, ring_bytes)?;
        let triggers = triggers(self.trigger)?;
        if self.analyser.len() > MOST_ANALYSERS {
            return wrong(format!("analyser: expected at most {MOST_ANALYSERS}"));
        }
        let analysers = each("analyser", self.analyser, AnalyserSettings::check)?;
        let classic = hold(self.classic)?;
        let interfaces = match self.interfaces.is_empty() {
            true => (0..PORTS).map(|port| format!("port {port}")).collect(),
            false => self.interfaces,
        };
        Ok(Checked {
            ring_bytes,
            most_bytes,
            bucket_bytes: bucket_bytes as usize,
            snap_bytes: snap_bytes as usize,
            drops: self.drop,
            target,
            roll,
            zstd: self.zstd,
            disk,
            flows: self.flows,
            control: self.control,
            interfaces,
            classic,
            look: self.look,
            triggers,
            analysers,
        })
    }
}

impl AnalyserSettings {
    fn check(self) -> Result<analyser::Checked, SettingsError> {
        AnalyserScript::check(&self.file).map_err(|e| SettingsError(format!("file: {e}")))?;
        let flows = self.flows.unwrap_or(ANALYSED_FLOWS);
        if !(1..=MOST_ANALYSED_FLOWS).contains(&flows) {
            return wrong(format!(
                "flows = {flows}: expected 1 to {MOST_ANALYSED_FLOWS}"
            ));
        }
        Ok(analyser::Checked {
            file: self.file,
            filter: made("when", &self.when.unwrap_or_default())?,
            flows,
            settings: self.settings,
        })
    }
}

impl TriggerSettings {
    fn check(self) -> Result<Trigger, SettingsError> {
        check_name(&self.name)?;
        let (is_special, combination) = (self.is_special(), self.check_combination());
        let over = time("over", self.over)?;
        let silence = time("silence", self.silence)?;
        let late = time("late", self.late)?;
        let flags = flags(self.fate.as_deref())?;
        // Errors in single keys are reported first.
        combination?;
        let filter = made("when", &self.when.unwrap_or_default())?;
        let keep = match self.keep {
            Some(text) => made("keep", &text)?,
            // By default, the packets that fire the trigger are stored; a trigger without such packets stores all
            // packets.
            None if is_special => made("keep", "")?,
            None => filter.clone(),
        };
        let when = if let Some(packets) = self.more_than {
            When::Rate {
                filter,
                packets,
                over: over.unwrap_or(Duration::from_secs(1)),
            }
        } else if let Some(over) = silence {
            When::Silence { filter, over }
        } else if let Some(over) = late {
            When::Late { filter, over }
        } else if let Some(flags) = flags {
            When::Fate { filter, flags }
        } else if let Some(counter) = self.counter {
            When::Count(counter)
        } else if self.asked {
            When::Asked
        } else if self.always {
            When::Always
        } else {
            When::Packet(filter)
        };
        Ok(Trigger {
            when,
            keep,
            before: time("before", self.before)?.unwrap_or(BEFORE),
            after: time("after", self.after)?.unwrap_or(AFTER),
            cutoff_bytes: self.cutoff.map(|it| it.bytes),
            most_per_minute: self.most_per_minute.unwrap_or(MOST_PER_MINUTE),
            name: self.name,
        })
    }

    /// Returns true if the trigger has another condition than a rate of packets; such a trigger stores all packets by
    /// default.
    fn is_special(&self) -> bool {
        self.silence.is_some()
            || self.late.is_some()
            || self.fate.is_some()
            || self.counter.is_some()
            || self.asked
    }

    /// Checks that the keys of a trigger select one condition, and that each key belongs to this condition.
    fn check_combination(&self) -> Result<(), SettingsError> {
        let name = &self.name;
        let kinds = [
            self.more_than.is_some(),
            self.silence.is_some(),
            self.late.is_some(),
            self.fate.is_some(),
            self.counter.is_some(),
            self.asked,
            self.always,
        ];
        match kinds.iter().filter(|it| **it).count() {
            0 if self.when.is_some() => {}
            1 => {}
            _ => {
                return wrong(format!(
                    "{name}: expected when, or one of more_than, silence, late, fate, counter, asked and always"
                ));
            }
        }
        if self.over.is_some() && self.more_than.is_none() {
            return wrong(format!("{name}: over: only with more_than"));
        }
        if self.counter.is_some() && self.when.is_some() {
            return wrong(format!(
                "{name}: counter: not with when, as no packet belongs to it; keep says which are written"
            ));
        }
        Ok(())
    }
}

impl Checked {
    /// Returns true if readers get a bucket only after the worker that filled the bucket has released it, as in the
    /// dissertation (Gallenmüller 2021).
    pub fn hands_over(&self) -> bool {
        self.classic.is_some()
    }

    fn analysers(&self) -> Vec<taut_capture::analyser::Settings> {
        let triggers: Vec<_> = self.triggers.iter().map(|it| it.name.clone()).collect();
        self.analysers
            .iter()
            .map(|it| it.settings(&triggers))
            .collect()
    }

    /// Starts the capture; `stamped` has true for each port that timestamps packets.
    pub fn start(&self, stamped: &[bool]) -> Result<Capture, PortError> {
        let least = 2 * self.bucket_bytes as u64;
        let ring_bytes = self
            .ring_bytes
            .or_else(|| {
                let of_flows = (self.flows * BYTES_PER_FLOW) as u64;
                available_bytes().map(|free| free.saturating_sub(of_flows) / SHARE_OF_FREE)
            })
            .unwrap_or(least)
            .max(least);
        let settings = capture::Settings {
            ring_bytes,
            most_bytes: self.most_bytes.unwrap_or(ring_bytes),
            bucket_bytes: self.bucket_bytes,
            snap_bytes: self.snap_bytes,
            triggers: self.triggers.clone(),
            analysers: self.analysers(),
            target: self.target.clone(),
            roll: self.roll,
            zstd: self.zstd,
            ports: self.interfaces.clone(),
            disk: self.disk.clone(),
            flows: self.flows,
            classic: self.classic,
            polls: self.look == Look::Poll,
            times: times(stamped, &self.interfaces),
            tell: |words| eprintln!("taut: capture: {words}"),
        };
        Capture::start(settings).map_err(|e| {
            PortError::system("function \"record\"", std::io::Error::other(e.to_string()))
        })
    }
}

/// Returns the text in capture files that describes how packets were timestamped at each interface.
fn times(stamped: &[bool], interfaces: &[String]) -> String {
    const TICKS: &str = "the processor's ticks, one for each batch";
    let names = stamped.iter().zip(interfaces).filter(|it| *it.0);
    let names: Vec<_> = names.map(|it| it.1.as_str()).collect();
    match (names.len(), stamped.len()) {
        (0, _) => format!("times are {TICKS}"),
        (some, all) if some == all => "times are stamps of the ports on arrival".to_string(),
        _ => format!(
            "times are stamps of the ports on arrival at {}, elsewhere {TICKS}",
            names.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_function::settings;

    fn check(text: &str) -> Result<Checked, String> {
        let settings = settings::<Settings>(text.parse().unwrap());
        settings.and_then(Settings::check).map_err(|e| e.0)
    }

    #[test]
    fn errors_in_record_settings_name_their_key() {
        let trigger = |text: &str| format!("[[trigger]]\nname = \"a\"\n{text}");
        for (text, said) in [
            (
                "ring = \"1 MB\"",
                "ring: 1048576 bytes are less than two buckets",
            ),
            ("ring = \"9000000 GB\"", "memory are free"),
            ("bucket = 100", "bucket: 100 bytes"),
            ("snap = 0", "snap = 0"),
            ("dump = \"a\"\nfile = \"b\"", "give only one of them"),
            ("file = \"b\"\nroll_size = \"1 MB\"", "roll_size"),
            ("disk = \"a\"", "disk and disk_size"),
            ("zstd = true", "only with dump or disk"),
            ("zstd = true\nfile = \"b.zst\"", "name ends in .zst"),
            ("classic = \"0s\"", "classic: expected a time up to 10 s"),
            ("classic = \"soon\"", "classic = \"soon\""),
            ("look = \"away\"", "look"),
            ("flows = 100000001", "expected at most 100000000"),
            ("flows = -1", "flows"),
            (&trigger(""), "trigger 1: a: expected when"),
            (
                &trigger("asked = true\nalways = true"),
                "trigger 1: a: expected when",
            ),
            (
                &trigger("counter = \"alerts\"\nwhen = \"udp\""),
                "counter: not with when",
            ),
            (&trigger("fate = \"eaten\""), "expected \"dropped\""),
            (&trigger("when = \"udp\"\nover = \"1s\""), "over: only"),
            (
                &trigger("asked = true\nbefore = \"soon\""),
                "before = \"soon\"",
            ),
            (
                "[[analyser]]\nfile = \"/none.lua\"",
                "analyser 1: file: cannot read",
            ),
            ("[[analyser]]\nflows = 1", "analyser 1: "),
            (
                "[[trigger]]\nname = \"a/b\"\nasked = true",
                "names of files",
            ),
            (
                "[[trigger]]\nname = \"a\"\nasked = true\n[[trigger]]\nname = \"a\"\nasked = true",
                "two are called a",
            ),
        ] {
            let wrong = check(text).unwrap_err();
            assert!(wrong.contains(said), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_capture_file_names_the_source_of_its_timestamps() {
        let names = ["a", "b"].map(String::from);
        assert!(times(&[], &names).starts_with("times are the processor's ticks"));
        assert!(times(&[true, true], &names).ends_with("on arrival"));
        assert!(
            times(&[false, true], &names).contains("on arrival at b, elsewhere the processor's")
        );
    }

    #[test]
    fn a_trigger_records_only_packets_matching_its_condition_by_default() {
        let checked = check("[[trigger]]\nname = \"a\"\nwhen = \"udp\"\n[[trigger]]\nname = \"b\"\nwhen = \"udp\"\nsilence = \"1s\"").unwrap();
        assert_eq!(checked.triggers[0].keep.text(), "udp");
        assert_eq!(checked.triggers[1].keep.text(), "");
        assert_eq!(checked.interfaces.len(), PORTS);
    }
}
