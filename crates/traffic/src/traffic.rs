//! The traffic of a load generator: one stream or several, from a traffic file or made in code.
//!
//! ```toml
//! [[stream]]
//! name = "voice"
//! rate = "50k"
//! size = "200"
//! pattern = "poisson"
//! priority = 1
//! dst_ip = "10.0.0.1-10.0.255.254 random"
//!
//! [[stream]]
//! name = "background"
//! size = "imix"
//! ```

use crate::field::{FieldName, Values};
use crate::rate::WIRE_OVERHEAD_BYTES;
use crate::{Load, Pattern, Plan, Rate, Sizes, Stream};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::Path;
use taut_settings::{SettingsFileError, in_words, place_in};
use taut_wire::{Mac, Protocol, Tunnel, UdpFlow, VlanTag};

/// Limit on the streams of one load generator: a stamp identifies its stream by four bits.
pub const MOST_STREAMS: usize = 16;

/// Valid values of a stream's share of the trial's rate; within this range, sums and ratios of shares are finite.
const SHARES: RangeInclusive<f64> = 1e-9..=1e9;

/// One or more streams that are sent together.
#[derive(Debug, Clone)]
pub struct Traffic {
    streams: Vec<Stream>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "stream")]
    streams: Vec<toml::Spanned<StreamFile>>,
}

/// A number, or a text such as a range.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number, or a text in quotes")]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl NumberOrText {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamFile {
    name: Option<String>,
    rate: Option<NumberOrText>,
    share: Option<f64>,
    size: Option<NumberOrText>,
    pattern: Option<String>,
    frames: Option<String>,
    priority: Option<u8>,
    seed: Option<u64>,
    protocol: Option<String>,
    src_mac: Option<String>,
    dst_mac: Option<String>,
    gateway: Option<IpAddr>,
    vlan: Option<NumberOrText>,
    src_ip: Option<String>,
    dst_ip: Option<String>,
    ttl: Option<NumberOrText>,
    src_port: Option<NumberOrText>,
    dst_port: Option<NumberOrText>,
    teid: Option<NumberOrText>,
    outer_src_ip: Option<IpAddr>,
    outer_dst_ip: Option<IpAddr>,
}

impl From<Stream> for Traffic {
    fn from(stream: Stream) -> Self {
        Self {
            streams: vec![stream],
        }
    }
}

impl Traffic {
    /// Makes traffic from several streams, sent together.
    ///
    /// # Errors
    /// There is no stream, or too many.
    pub fn of(streams: Vec<Stream>) -> Result<Self, String> {
        match streams.len() {
            1..=MOST_STREAMS => Ok(Self { streams }),
            0 => Err("no stream: write at least one [[stream]]".to_string()),
            n => Err(format!("{n} streams: the maximum is {MOST_STREAMS}")),
        }
    }

    /// Makes traffic without streams, for a trial that only receives.
    pub fn none() -> Self {
        Self {
            streams: Vec::new(),
        }
    }

    /// Returns the streams of the traffic.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    pub(crate) fn streams_mut(&mut self) -> &mut [Stream] {
        &mut self.streams
    }

    /// Restricts the traffic to the packets of worker `number` of `of` workers: packets `number`, `number + of`, ... of
    /// each stream. Values and sizes are the same as if one worker sent all packets. Random values differ from worker
    /// to worker.
    #[must_use]
    pub fn share(mut self, number: usize, of: usize) -> Self {
        for stream in &mut self.streams {
            stream.share(number, of);
        }
        self
    }

    /// Returns the rate of each stream in a trial at `total_pps`, packets per second. Streams with a rate of their own
    /// keep that rate; the other streams divide `total_pps` by their shares.
    pub fn rates_pps(&self, total_pps: f64) -> Vec<f64> {
        let shares: f64 = self
            .streams
            .iter()
            .map(|s| match s.load() {
                Load::Share(share) => share,
                Load::Fixed(_) => 0.0,
            })
            .sum();
        self.streams
            .iter()
            .map(|s| match s.load() {
                Load::Share(share) => total_pps * share / shares,
                Load::Fixed(pps) => pps,
            })
            .collect()
    }

    /// Returns the mean bit rate on the link in a trial at `total_pps`, bits per second, preambles and inter-frame gaps
    /// included.
    pub fn wire_bits_per_s(&self, total_pps: f64) -> f64 {
        let rates = self.rates_pps(total_pps);
        let streams = self.streams.iter().zip(rates);
        streams
            .map(|(stream, pps)| pps * (stream.sizes().average_bytes() + WIRE_OVERHEAD_BYTES) * 8.0)
            .sum()
    }

    /// Returns true if every stream has a rate of its own, so that the trial's rate has no effect.
    pub fn has_own_rates(&self) -> bool {
        self.streams
            .iter()
            .all(|s| matches!(s.load(), Load::Fixed(_)))
    }

    /// Returns the mean frame size, in bytes with check sequence, of the streams that share the trial's rate.
    pub fn average_bytes(&self) -> f64 {
        let (mut bytes, mut shares) = (0.0, 0.0);
        for stream in &self.streams {
            if let Load::Share(share) = stream.load() {
                bytes += share * stream.sizes().average_bytes();
                shares += share;
            }
        }
        if shares > 0.0 { bytes / shares } else { 0.0 }
    }

    /// Makes one stream from settings as in a traffic file, such as ("size", "imix").
    ///
    /// # Errors
    /// The error names the fault and the valid values.
    pub fn of_settings(settings: &[(&str, &str)]) -> Result<Self, String> {
        Self::of_settings_over(&UdpFlow::default(), settings)
    }

    /// Makes a stream like [`Traffic::of_settings`], with the values of `flow` as defaults.
    ///
    /// # Errors
    /// The errors are those of [`Traffic::of_settings`].
    pub fn of_settings_over(flow: &UdpFlow, settings: &[(&str, &str)]) -> Result<Self, String> {
        let mut table = toml::Table::new();
        for (key, value) in settings {
            let value = match (*key, value.parse::<i64>(), value.parse::<f64>()) {
                ("priority" | "seed", Ok(number), _) => toml::Value::Integer(number),
                ("share", _, Ok(share)) => toml::Value::Float(share),
                _ => toml::Value::String((*value).to_string()),
            };
            if table.insert((*key).to_string(), value).is_some() {
                return Err(format!("{key} is set twice"));
            }
        }
        let stream: StreamFile = table
            .try_into()
            .map_err(|e: toml::de::Error| in_words(&e))?;
        stream.make(0, flow).map(Self::from)
    }

    /// Reads a traffic file, with the values of `flow` as defaults.
    ///
    /// # Errors
    /// The error names the file, the line, the fault and the valid values.
    pub fn load(path: &Path, flow: &UdpFlow) -> Result<Self, SettingsFileError> {
        let text = SettingsFileError::read(path)?;
        Self::parse_over(flow, &text, &path.display().to_string())
    }

    /// Parses the text of a traffic file called `name`.
    ///
    /// # Errors
    /// The errors are those of [`Traffic::load`].
    pub fn parse(text: &str, name: &str) -> Result<Self, SettingsFileError> {
        Self::parse_over(&UdpFlow::default(), text, name)
    }

    fn parse_over(flow: &UdpFlow, text: &str, name: &str) -> Result<Self, SettingsFileError> {
        let wrong = |at, reason: String| SettingsFileError::wrong(text, name, at, reason);
        let file: File =
            toml::from_str(text).map_err(|e| SettingsFileError::of_toml(text, name, &e))?;
        let mut streams = Vec::new();
        for (index, stream) in file.streams.iter().enumerate() {
            let made = stream.get_ref().make(index, flow);
            streams.push(made.map_err(|reason| {
                let place = place_in(text, "stream", index, &reason);
                wrong(place.or(Some(stream.span().start)), reason)
            })?);
        }
        for (index, stream) in streams.iter().enumerate() {
            let name = stream.name();
            if streams[..index].iter().any(|s| s.name() == name) {
                let at = file.streams[index].span().start;
                return Err(wrong(
                    Some(at),
                    format!("a second stream is called \"{name}\""),
                ));
            }
        }
        check_line_shares(&file.streams).map_err(|(at, reason)| wrong(Some(at), reason))?;
        Self::of(streams).map_err(|reason| wrong(None, reason))
    }
}

/// Checks that streams with percentages of the same line rate add up to at most 100 %. The error contains the index of
/// the first stream with which a sum exceeds 100 %.
fn check_line_shares(streams: &[toml::Spanned<StreamFile>]) -> Result<(), (usize, String)> {
    let mut lines: Vec<(f64, f64)> = Vec::new();
    for stream in streams {
        let rate = stream
            .get_ref()
            .rate
            .as_ref()
            .and_then(|rate| rate.text().parse().ok());
        let Some(Rate::Line {
            share,
            bits_per_second: Some(line),
        }) = rate
        else {
            continue;
        };
        let taken = match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, taken)) => {
                *taken += share;
                *taken
            }
            None => {
                lines.push((line, share));
                share
            }
        };
        if taken > 1.0 + 1e-9 {
            let reason = format!(
                "with this stream the load is {:.0} % of the line of {} Gbit/s: the maximum is 100 %",
                taken * 100.0,
                line / 1e9
            );
            return Err((stream.span().start, reason));
        }
    }
    Ok(())
}

impl StreamFile {
    fn make(&self, index: usize, flow: &UdpFlow) -> Result<Stream, String> {
        let mut plan = Plan {
            name: self
                .name
                .clone()
                .unwrap_or_else(|| format!("stream {}", index + 1)),
            priority: self.priority.unwrap_or(0),
            seed: self.seed.unwrap_or(index as u64 + 1),
            flow: *flow,
            ..Plan::default()
        };
        if let Some(pattern) = &self.pattern {
            plan.pattern = pattern.parse::<Pattern>().map_err(|e| e.to_string())?;
        }
        self.set_sizes(&mut plan)?;
        let tunnelled = self.set_protocol(&mut plan)?;
        self.set_addresses(&mut plan)?;
        if self.gateway.is_some() && self.dst_mac.is_some() {
            return Err("give gateway or dst_mac, not both".to_string());
        }
        plan.gateway = self.gateway;
        self.set_tunnel(&mut plan, tunnelled)?;
        plan.load = self.load(&plan)?;
        if self.frames.is_some() {
            self.take_frames(&mut plan)?;
        }
        Stream::of(plan).map_err(|e| e.to_string())
    }

    /// Copies the protocol of the stream into the plan; returns true if the packets are tunnelled.
    fn set_protocol(&self, plan: &mut Plan) -> Result<bool, String> {
        match self.protocol.as_deref() {
            None | Some("udp") => Ok(false),
            Some("tcp") => {
                plan.protocol = Protocol::Tcp;
                Ok(false)
            }
            Some("icmp") => {
                plan.protocol = Protocol::IcmpEcho;
                Ok(false)
            }
            Some("gtpu") => Ok(true),
            Some(other) => Err(format!(
                "protocol \"{other}\": expected udp, tcp, icmp or gtpu"
            )),
        }
    }

    /// Sets the tunnel around the packets, if they are tunnelled.
    fn set_tunnel(&self, plan: &mut Plan, tunnelled: bool) -> Result<(), String> {
        if tunnelled {
            plan.tunnel = Some(Tunnel {
                teid: 1,
                src_ip: self
                    .outer_src_ip
                    .unwrap_or(Ipv4Addr::new(198, 18, 1, 1).into()),
                dst_ip: self
                    .outer_dst_ip
                    .unwrap_or(Ipv4Addr::new(198, 19, 1, 1).into()),
            });
            if let Some(teid) = &self.teid {
                let values = FieldName::Teid
                    .values(&teid.text())
                    .map_err(|e| e.to_string())?;
                plan.varied.push((FieldName::Teid, values));
            }
        } else if self.teid.is_some() || self.outer_src_ip.is_some() || self.outer_dst_ip.is_some()
        {
            return Err("teid and outer addresses need protocol = \"gtpu\"".to_string());
        }
        Ok(())
    }

    /// Returns the rate of the stream. If neither rate nor share is configured, this is the rate of the pattern's
    /// trace, or an equal share of the trial's rate.
    fn load(&self, plan: &Plan) -> Result<Load, String> {
        if let Pattern::Trace(trace) = &plan.pattern
            && trace.speed() != 1.0
            && (self.rate.is_some() || self.share.is_some())
        {
            return Err("give the trace's speed or a rate, not both".to_string());
        }
        match (&self.rate, self.share) {
            (Some(_), Some(_)) => Err("give rate or share, not both".to_string()),
            (None, None) => match &plan.pattern {
                Pattern::Trace(trace) => Ok(Load::Fixed(trace.rate_pps())),
                _ => Ok(Load::Share(1.0)),
            },
            (None, Some(share)) if SHARES.contains(&share) => Ok(Load::Share(share)),
            (None, Some(share)) => {
                let (least, most) = (SHARES.start(), SHARES.end());
                Err(format!("share = {share}: expected {least:e} to {most:e}"))
            }
            (Some(rate), None) => {
                let rate: Rate = rate
                    .text()
                    .parse()
                    .map_err(|e: crate::RateError| e.to_string())?;
                let pps = rate.packets_per_second(plan.sizes.average_bytes());
                Ok(Load::Fixed(pps.map_err(|e| e.to_string())?))
            }
        }
    }

    /// Sets the frame sizes, which may be the frame sizes of the pattern's trace.
    fn set_sizes(&self, plan: &mut Plan) -> Result<(), String> {
        let size = self.size.as_ref().map(NumberOrText::text);
        let of_trace = self.frames.is_some() || size.as_deref() == Some("trace");
        match (&plan.pattern, size) {
            (Pattern::Trace(trace), _) if of_trace => {
                trace.check_sizes()?;
                plan.sizes = Sizes::of_trace(trace.size_bytes());
            }
            (_, Some(size)) if size == "trace" => {
                return Err("size = \"trace\" needs pattern = \"trace(FILE)\"".to_string());
            }
            (_, Some(size)) => plan.sizes = size.parse::<Sizes>().map_err(|e| e.to_string())?,
            (_, None) => {}
        }
        Ok(())
    }

    /// Sets the frames to the frames of the pattern's trace, with the configured MAC addresses.
    fn take_frames(&self, plan: &mut Plan) -> Result<(), String> {
        let trace = match (self.frames.as_deref(), &plan.pattern) {
            (Some("trace"), Pattern::Trace(trace)) => trace,
            (Some("trace"), _) => {
                return Err("frames = \"trace\" needs pattern = \"trace(FILE)\"".to_string());
            }
            (other, _) => {
                let other = other.unwrap_or_default();
                return Err(format!(
                    "frames = \"{other}\": expected trace, or leave it out"
                ));
            }
        };
        let size = self.size.as_ref().map(NumberOrText::text);
        let made = [
            ("size", size.is_some_and(|size| size != "trace")),
            ("protocol", self.protocol.is_some()),
            ("gateway", self.gateway.is_some()),
            ("vlan", self.vlan.is_some()),
            ("src_ip", self.src_ip.is_some()),
            ("dst_ip", self.dst_ip.is_some()),
            ("ttl", self.ttl.is_some()),
            ("src_port", self.src_port.is_some()),
            ("dst_port", self.dst_port.is_some()),
        ];
        if let Some((key, _)) = made.iter().find(|(_, given)| *given) {
            return Err(format!(
                "frames = \"trace\" sends frames as they were captured: leave out {key}"
            ));
        }
        if let Some((name, _)) = plan.varied.first() {
            return Err(format!(
                "frames = \"trace\": {} may be one address, not a range",
                name.key()
            ));
        }
        plan.frames = trace.frames()?;
        for frame in &mut plan.frames {
            for (given, at, mac) in [
                (&self.dst_mac, 0, plan.flow.dst_mac),
                (&self.src_mac, 6, plan.flow.src_mac),
            ] {
                if given.is_some() {
                    frame[at..at + 6].copy_from_slice(&mac.0);
                }
            }
        }
        Ok(())
    }

    /// Sets addresses and ports: fields with a single value become part of the flow, and the other fields vary.
    fn set_addresses(&self, plan: &mut Plan) -> Result<(), String> {
        let text = |n: &Option<NumberOrText>| n.as_ref().map(NumberOrText::text);
        let is_v6 = |ip: &Option<String>| ip.as_ref().is_some_and(|ip| ip.contains(':'));
        let v6 = is_v6(&self.src_ip) || is_v6(&self.dst_ip);
        if v6 {
            // The addresses are reserved for benchmarks (RFC 5180).
            plan.flow.src_ip = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1).into();
            plan.flow.dst_ip = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1).into();
        }
        for (name, given) in [
            (FieldName::SrcMac, self.src_mac.clone()),
            (FieldName::DstMac, self.dst_mac.clone()),
            (FieldName::Vlan, text(&self.vlan)),
            (FieldName::SrcIp, self.src_ip.clone()),
            (FieldName::DstIp, self.dst_ip.clone()),
            (FieldName::Ttl, text(&self.ttl)),
            (FieldName::SrcPort, text(&self.src_port)),
            (FieldName::DstPort, text(&self.dst_port)),
        ] {
            let Some(given) = given else { continue };
            let values = name.values(&given).map_err(|e| e.to_string())?;
            if [FieldName::SrcIp, FieldName::DstIp].contains(&name) && v6 != given.contains(':') {
                return Err(format!(
                    "{} \"{given}\": is mixed with addresses of the other IP version",
                    name.key()
                ));
            }
            set(plan, name, values, v6)?;
            if values.count > 1 {
                plan.varied.push((name, values));
            }
        }
        Ok(())
    }
}

fn set(plan: &mut Plan, name: FieldName, values: Values, v6: bool) -> Result<(), String> {
    let low = values.low;
    let mac = || {
        let [_, _, bytes @ ..] = (low as u64).to_be_bytes();
        Mac(bytes)
    };
    let ip = || -> IpAddr {
        if v6 {
            Ipv6Addr::from_bits(low).into()
        } else {
            Ipv4Addr::from_bits(low as u32).into()
        }
    };
    let flow = &mut plan.flow;
    match name {
        FieldName::SrcMac => flow.src_mac = mac(),
        FieldName::DstMac => flow.dst_mac = mac(),
        FieldName::Vlan => {
            flow.vlan = Some(VlanTag::new(low as u16).map_err(|e| e.to_string())?);
        }
        FieldName::SrcIp => flow.src_ip = ip(),
        FieldName::DstIp => flow.dst_ip = ip(),
        FieldName::Ttl => flow.ttl = low as u8,
        FieldName::SrcPort => flow.src_port = low as u16,
        FieldName::DstPort => flow.dst_port = low as u16,
        FieldName::Teid => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_with_two_streams_parses_to_its_settings() {
        let traffic = Traffic::parse(
            "[[stream]]\nname = \"voice\"\nrate = \"50k\"\nsize = 200\npattern = \"poisson\"\npriority = 1\n\
             dst_ip = \"10.0.0.1-10.0.255.254 random\"\nvlan = 7\n\
             [[stream]]\nsize = \"imix\"\nshare = 3\n[[stream]]\nprotocol = \"gtpu\"\nsize = 128\nteid = \"1-5\"\n",
            "x.toml",
        )
        .unwrap();
        let streams = traffic.streams();
        assert_eq!(
            (streams[0].name(), streams[1].name()),
            ("voice", "stream 2")
        );
        assert_eq!(streams[0].pattern(), &Pattern::Poisson);
        assert_eq!(traffic.rates_pps(1e6), [50e3, 750e3, 250e3]);
        assert!(!traffic.has_own_rates());
    }

    #[test]
    fn errors_in_traffic_files_name_the_line_and_remedy() {
        for (text, part) in [
            ("", "stream"),
            (
                "[[stream]]\nspeed = 9\n",
                "x.toml:2:1: unknown key `speed`: expected one of `name`, ",
            ),
            (
                "\n[[stream]]\nrate = \"fast\"\n",
                "x.toml:3:8: rate \"fast\"",
            ),
            ("[[stream]]\nsize = 63\n", "x.toml:2:8: size \"63\""),
            ("[[stream]]\nrate = \"1k\"\nshare = 1\n", "not both"),
            (
                "[[stream]]\nshare = 0\n",
                "x.toml:2:9: share = 0: expected 1e-9 to 1e9",
            ),
            (
                "[[stream]]\nrate = \"60% of 1G\"\n[[stream]]\nrate = \"50% of 1G\"\n",
                "x.toml:3:1: with this stream the load is 110 % of the line of 1 Gbit/s",
            ),
            (
                "[[stream]]\nrate = \"110% of 1G\"\n",
                "x.toml:2:8: rate \"110%",
            ),
            (
                "[[stream]]\nsize = 64\nprotocol = \"gtpu\"\n",
                "x.toml:2:8: size = 64: expected 100 to 9216",
            ),
            (
                "[[stream]]\nsrc_ip = \"2001:db8::1\"\n",
                "size = 64: expected 84 to 9216",
            ),
            ("[[stream]]\nvlan = 7\n", "size = 64: expected 68 to 9216"),
            (
                "[[stream]]\nprotocol = \"tcp\"\nvlan = 7\nsrc_ip = \"2001:db8::1\"\n",
                "size = 64: expected 82 to 9216 bytes: the headers take 78, the stamp in the payload 0",
            ),
            (
                "[[stream]]\npriority = 256\n",
                "x.toml:2:12: priority = 256: expected a whole number from 0 to 255",
            ),
            (
                "[[stream]]\npattrn = \"poisson\"\n",
                "; did you mean `pattern`?",
            ),
            (
                "[[stream]]\nname = 5\n",
                "x.toml:2:8: name = 5: expected a text in quotes: \"5\"",
            ),
            (
                "[stream]\nsize = 64\n",
                "stream: expected a list: write `[[stream]]`",
            ),
            (
                "[[stream]]\nrate = -5\n",
                "x.toml:2:8: rate: expected a whole number, or a text",
            ),
            ("[[stream]]\nteid = 4\n", "need protocol"),
            (
                "[[stream]]\nprotocol = \"sctp\"\n",
                "expected udp, tcp, icmp or gtpu",
            ),
            (
                "[[stream]]\nsrc_ip = \"::1\"\ndst_ip = \"10.0.0.1\"\n",
                "other IP version",
            ),
            (
                "[[stream]]\nprotocol = \"gtpu\"\n",
                "x.toml:1:1: size = 64: expected 100 to 9216 bytes: the headers take 78",
            ),
            (
                "[[stream]]\nname = \"a\"\n[[stream]]\nname = \"a\"\n",
                "x.toml:3:1: a second stream",
            ),
        ] {
            let message = Traffic::parse(text, "x.toml").unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_rate_may_be_a_number_of_packets_per_second() {
        let traffic = Traffic::parse("[[stream]]\nrate = 50000\n", "x.toml").unwrap();
        assert_eq!(traffic.rates_pps(1.0), [50e3]);
    }
}
