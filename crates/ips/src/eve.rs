//! Events as lines of JSON, in Suricata's EVE format.

use super::event::{Arrived, SAID, What};
use super::rules::Known;
use serde::Serialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use taut_inspect::buffer::Buffer;
use taut_sys::{Clock, ticks};

/// The severity that events report for a rule without a priority.
const USUAL_SEVERITY: u8 = 3;

/// The relation between clock ticks and the time of day.
pub(super) struct Time {
    clock: Clock,
    ticks: u64,
    wall: Duration,
}

impl Time {
    pub fn new() -> Self {
        let clock = Clock::calibrate(Duration::from_millis(20));
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            clock,
            ticks: ticks(),
            wall,
        }
    }

    /// Returns the arrival time of a packet since 1970: its port's timestamp, or its receive time if the port has none.
    pub fn of(&self, arrived: &Arrived) -> Duration {
        match arrived.stamp_ns {
            0 => self.at(arrived.event.at_ticks),
            stamp_ns => Duration::from_nanos(stamp_ns),
        }
    }

    fn at(&self, ticks: u64) -> Duration {
        let since = self.clock.to_ns(ticks.abs_diff(self.ticks));
        let since = Duration::from_nanos(since as u64);
        if ticks >= self.ticks {
            self.wall + since
        } else {
            self.wall.saturating_sub(since)
        }
    }
}

/// Returns a time of day in the format of RFC 3339, with microseconds, and with the UTC offset in Suricata's form.
fn utc(since_1970: Duration) -> String {
    let text = humantime::format_rfc3339_micros(UNIX_EPOCH + since_1970).to_string();
    text.replace('Z', "+0000")
}

fn address(bits: u128) -> String {
    let address = Ipv6Addr::from(bits);
    address
        .to_ipv4_mapped()
        .map_or_else(|| address.to_string(), |it| it.to_string())
}

fn protocol(number: u8) -> Cow<'static, str> {
    match number {
        1 => "ICMP".into(),
        6 => "TCP".into(),
        17 => "UDP".into(),
        58 => "IPv6-ICMP".into(),
        132 => "SCTP".into(),
        other => format!("{other:03}").into(),
    }
}

/// The JSON object of an event; empty fields are omitted.
#[derive(Serialize)]
struct Line<'a> {
    timestamp: String,
    flow_id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_iface: Option<Cow<'a, str>>,
    event_type: &'static str,
    src_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    dest_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dest_port: Option<u16>,
    proto: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_proto: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alert: Option<Alert<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drop: Option<Drop>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<Flow>,
    #[serde(flatten)]
    said: BTreeMap<&'static str, Value>,
}

impl Line<'_> {
    /// Returns a JSON object with the fields that all events have in common. The event type is `alert` until the caller
    /// replaces it.
    fn of(arrived: &Arrived, time: &Time, said: &[u8]) -> Self {
        let event = &arrived.event;
        let ends = &event.ends;
        let has_ports = matches!(ends.protocol, 6 | 17 | 132);
        Self {
            timestamp: utc(time.of(arrived)),
            flow_id: event.flow,
            in_iface: None,
            event_type: "alert",
            src_ip: address(ends.source.0),
            src_port: has_ports.then_some(ends.source.1),
            dest_ip: address(ends.destination.0),
            dest_port: has_ports.then_some(ends.destination.1),
            proto: protocol(ends.protocol),
            app_proto: event.application.map(|it| it.name()),
            alert: None,
            drop: None,
            flow: None,
            said: in_words(said),
        }
    }
}

#[derive(Serialize)]
struct Alert<'a> {
    action: &'static str,
    #[serde(flatten)]
    rule: Option<Rule<'a>>,
}

#[derive(Serialize)]
struct Rule<'a> {
    gid: u32,
    signature_id: u32,
    rev: u32,
    signature: &'a str,
    category: &'a str,
    severity: u8,
}

#[derive(Serialize)]
struct Drop {
    reason: &'static str,
}

#[derive(Serialize)]
struct Flow {
    pkts_toserver: u32,
    pkts_toclient: u32,
    bytes_toserver: u64,
    bytes_toclient: u64,
    reason: &'static str,
    alerted: bool,
}

impl<'a> Rule<'a> {
    fn of(known: &'a Known) -> Self {
        let about = &known.about;
        Self {
            gid: about.group,
            signature_id: about.id,
            rev: about.revision,
            signature: &about.message,
            category: &about.class,
            severity: match about.priority {
                0 => USUAL_SEVERITY,
                priority => priority,
            },
        }
    }
}

/// Appends an event as a line to `lines`. An alert includes the description of its rule and parts of the message.
pub(super) fn line(
    lines: &mut Vec<u8>,
    arrived: &Arrived,
    time: &Time,
    ports: &[String],
    rule: Option<&Known>,
    said: &[u8],
) {
    let event = &arrived.event;
    let mut line = Line::of(arrived, time, said);
    match event.what {
        What::Alert { is_blocked, .. } => {
            let is_blocked = is_blocked && rule.is_none_or(|it| it.drops);
            line.alert = Some(Alert {
                action: if is_blocked { "blocked" } else { "allowed" },
                rule: rule.map(Rule::of),
            });
        }
        What::Drop { reason } => {
            line.event_type = "drop";
            line.drop = Some(Drop { reason });
        }
        What::Flow {
            packets,
            bytes,
            alerts,
            reason,
        } => {
            line.event_type = "flow";
            line.flow = Some(Flow {
                pkts_toserver: packets[0],
                pkts_toclient: packets[1],
                bytes_toserver: bytes[0],
                bytes_toclient: bytes[1],
                reason,
                alerted: alerts > 0,
            });
        }
        What::Packet { .. } => return,
    }
    // A flow has packets of two ports, so no ingress port is given.
    if !matches!(event.what, What::Flow { .. }) {
        let name = ports.get(usize::from(event.port));
        let number = || event.port.to_string().into();
        line.in_iface = Some(name.map_or_else(number, |it| it.as_str().into()));
    }
    append(lines, &line);
}

/// Returns the message parts of an alert as Suricata's JSON objects, by the name of the protocol.
fn in_words(mut said: &[u8]) -> BTreeMap<&'static str, Value> {
    let mut objects = BTreeMap::new();
    while let Some((&[number, high, low], rest)) = said.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let Some((bytes, rest)) = rest.split_at_checked(len) else {
            break;
        };
        said = rest;
        let Some(buffer) = SAID.get(usize::from(number)) else {
            break;
        };
        let text = String::from_utf8_lossy(bytes);
        let (object, key) = match buffer {
            Buffer::HttpHost => ("http", "hostname"),
            Buffer::HttpRawUri => ("http", "url"),
            Buffer::HttpUserAgent => ("http", "http_user_agent"),
            Buffer::HttpMethod => ("http", "http_method"),
            Buffer::HttpProtocol => ("http", "protocol"),
            Buffer::HttpStatusCode => ("http", "status"),
            Buffer::DnsQuery => ("dns", "query"),
            _ => ("tls", "sni"),
        };
        let value = match buffer {
            Buffer::HttpStatusCode => text.parse::<u16>().map_or(Value::Null, Value::from),
            Buffer::DnsQuery => json!([{ "type": "query", "rrname": text }]),
            _ => text.into(),
        };
        let object = objects.entry(object).or_insert_with(|| json!({}));
        object[key] = value;
    }
    objects
}

/// Appends a line with the sums of all workers' counters to `lines`.
pub(super) fn statistics(
    lines: &mut Vec<u8>,
    counters: &BTreeMap<&'static str, u64>,
    lost: u64,
    time: &Time,
) {
    let line = json!({
        "timestamp": utc(time.at(ticks())),
        "event_type": "stats",
        "stats": { "ips": counters, "events_lost": lost },
    });
    append(lines, &line);
}

fn append(lines: &mut Vec<u8>, line: &impl Serialize) {
    let before = lines.len();
    match serde_json::to_writer(&mut *lines, line) {
        Ok(()) => lines.push(b'\n'),
        // Serialization cannot fail, because it writes into memory and all keys are strings.
        Err(_) => lines.truncate(before),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_written_as_utc_calendar_dates() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00.000000+0000"),
            (951_782_400, "2000-02-29T00:00:00.000000+0000"),
            (1_796_083_199, "2026-11-30T23:59:59.000000+0000"),
            (4_107_542_400, "2100-03-01T00:00:00.000000+0000"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), want);
        }
    }

    #[test]
    fn addresses_are_written_in_ipv4_or_ipv6_notation() {
        assert_eq!(address(0xffff_c000_0201), "192.0.2.1");
        assert_eq!(address(0x2001_0db8 << 96 | 1), "2001:db8::1");
    }

    #[test]
    fn a_truncated_event_record_yields_its_complete_fields() {
        let number = |buffer| SAID.iter().position(|it| *it == buffer).unwrap_or(255) as u8;
        let mut said = vec![number(Buffer::HttpStatusCode), 0, 3];
        said.extend(b"404");
        said.extend([number(Buffer::HttpHost), 0, 2, b'h', 0xff]);
        let words = in_words(&said);
        assert_eq!(
            words["http"],
            json!({"status": 404, "hostname": "h\u{fffd}"})
        );
        for cut in 0..said.len() {
            assert!(in_words(&said[..cut]).len() <= 1);
        }
        assert!(in_words(&[200, 0, 0]).is_empty());
    }
}
