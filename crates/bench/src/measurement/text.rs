//! The text about a measurement for a terminal, line by line.

use super::account::Account;
use super::summary::{DeviceWork, Kept, MeasuredDevice, StreamSummary, Versions};
use super::verdict::LimitMissed;
use schemars::JsonSchema;
use serde::Serialize;
use taut_host::EnergyUse;
use taut_measure::quantity::{bit_rate, rate, summary as percentiles, time};
use taut_port::PortCounters;
use taut_tap::Inside;
use taut_traffic::{Flow, Tally, bits_per_second};

impl Account {
    /// Returns the lines about the measurement for a terminal.
    pub fn lines(&self) -> Vec<String> {
        let summary = &self.summary;
        let mut lines = Vec::new();
        for (stream, bytes) in summary.streams.iter().zip(&self.average_bytes) {
            if !summary.streams.others.is_empty() {
                lines.push(format!(
                    "{}: asked for {}",
                    stream.name,
                    rate(stream.asked_pps)
                ));
            }
            if stream.measured {
                measured(stream, *bytes, self, &mut lines);
            } else {
                counted(stream, *bytes, &mut lines);
            }
        }
        if let Some(seen) = &summary.inside {
            inside(seen, &mut lines);
        }
        lines.extend(summary.energy.as_ref().and_then(energy_line));
        lines.extend(summary.device_work.as_ref().map(work_line));
        lines.extend(port_losses(self.port_names.iter().zip(&summary.ports)));
        let warnings = summary.warnings.iter();
        lines.extend(warnings.map(|warning| format!("note: {warning}")));
        lines
    }
}

/// Adds the lines for a stream of packets without timestamps.
fn counted(stream: &StreamSummary, average_bytes: f64, lines: &mut Vec<String>) {
    let tally = &stream.tally;
    lines.push(format!(
        "{}, refused by a full ring {}, never sent {}",
        sent(tally, average_bytes),
        tally.refused,
        tally.unsent
    ));
    lines.push(
        "they have no stamp (only UDP has space for one), so neither loss nor latency is measured"
            .to_string(),
    );
    if tally.foreign > 0 {
        lines.push(format!(
            "came back without a stamp: {} packets",
            tally.foreign
        ));
    }
}

/// Adds the lines for a stream of packets with timestamps.
fn measured(
    stream: &StreamSummary,
    average_bytes: f64,
    account: &Account,
    lines: &mut Vec<String>,
) {
    packets(stream, average_bytes, lines);
    times(stream, &account.histogram, lines);
    lines.extend(stamps_line(stream));
    if account.unknown_stamps {
        lines.push(
            "to the device's stamp  no data: its clock is its own, and cannot be related to this machine's"
                .to_string(),
        );
    }
    lines.extend(gaps_line(stream));
    if let Some(slowest) = &stream.slowest {
        lines.push(format!("slowest    {}", slowest.line()));
    }
    if let Some(Kept { kept, account }) = stream.samples {
        lines.push(format!(
            "samples    {kept} packets written, {} not (the disk was too slow or did not take them), {} arrived after their row was written",
            account.not_kept, account.too_late
        ));
    }
}

/// Adds the lines with the counts of a stream's packets.
fn packets(stream: &StreamSummary, average_bytes: f64, lines: &mut Vec<String>) {
    let tally = &stream.tally;
    let (duplicate, reordered) = stream
        .sequence
        .as_ref()
        .map_or((0, 0), |account| (account.duplicate, account.reordered));
    let sent = sent(tally, average_bytes);
    lines.push(format!("{sent}, received {}", tally.received));
    let explained = match tally.foreign {
        0 => "",
        _ => " (not the generator's, such as neighbour discovery)",
    };
    lines.push(format!(
        "lost {}, refused by a full ring {}, never sent {}, duplicate {duplicate}, reordered {reordered}, corrupt {}, foreign \
         {}{explained}",
        stream.lost.unwrap_or(0),
        tally.refused,
        tally.unsent,
        tally.corrupt,
        tally.foreign
    ));
    if tally.starved > 0 {
        lines.push(format!(
            "out of memory for packets {} times, which is the generator's fault: they left late or never",
            tally.starved
        ));
    }
    if tally.fillers_sent > 0 {
        lines.push(format!(
            "fillers    sent {}, came back and were dropped {}",
            tally.fillers_sent, tally.fillers_received
        ));
    }
    if tally.arp_answered > 0 {
        lines.push(format!(
            "answered {} questions for the MAC addresses of its stations",
            tally.arp_answered
        ));
    }
}

/// Adds the lines with a stream's latency and its histogram, the budget, the jitter and the send delay.
fn times(stream: &StreamSummary, histogram: &[String], lines: &mut Vec<String>) {
    lines.push(match &stream.latency_ns {
        Some(latency) => format!("latency    {}", percentiles(latency)),
        None => "latency    no data: nothing came back".to_string(),
    });
    lines.extend(histogram.iter().map(|line| format!("           {line}")));
    if let Some(budget) = &stream.budget {
        lines.push(format!(
            "budget     {:.4} % within {}",
            budget.share * 100.0,
            time(budget.ns as f64)
        ));
    }
    if let Some(jitter) = &stream.jitter_ns {
        lines.push(format!(
            "jitter     avg {}  max {}",
            time(jitter.avg_ns),
            time(jitter.max_ns as f64)
        ));
    }
    if let Some(send_delay) = stream.send_delay() {
        lines.push(format!("send delay {}", percentiles(send_delay)));
    }
}

/// Returns the line with the latency by the kernel's timestamps; none for a stream without such timestamps.
fn stamps_line(stream: &StreamSummary) -> Option<String> {
    let stamps = stream.kernel_stamps.as_ref()?;
    Some(format!(
        "to the kernel's stamp  {}  (clocks read within {})",
        stamps
            .latency_ns
            .as_ref()
            .map_or("no data".to_string(), percentiles),
        time(stamps.error_ns)
    ))
}

/// Returns the line with the stream's inter-departure times; none for a stream without such times.
fn gaps_line(stream: &StreamSummary) -> Option<String> {
    let gaps = stream.send_gap_ns.as_ref()?;
    let interrupted = stream.interrupted_send_gap_ns.as_ref();
    let interrupted = interrupted.map_or(0, |gaps| gaps.count);
    Some(format!(
        "send gap   asked {}  mean {}  median error {}  RMS error {}  (n = {}; {interrupted} during preemption, {:.1} %)",
        time(gaps.asked_gap_ns),
        time(gaps.mean_gap_ns),
        time(gaps.median_absolute_error_ns as f64),
        time(gaps.mean_squared_error_ns2.sqrt()),
        gaps.count,
        100.0 * interrupted as f64 / gaps.count.max(1) as f64
    ))
}

/// Returns the text with the number of sent packets, and their rate in packets/s and bit/s.
fn sent(tally: &Tally, average_bytes: f64) -> String {
    format!(
        "sent {} of {} packets in {:.3} s ({})",
        tally.sent,
        tally.owed,
        tally.seconds,
        rates(tally.sent as f64 / tally.seconds, average_bytes)
    )
}

/// Returns the text for a rate in packets, in bits of frames, and in bits on a link, each per second.
fn rates(pps: f64, average_bytes: f64) -> String {
    let [frames, link] = bits_per_second(pps, average_bytes).map(bit_rate);
    format!("{}, {frames}, {link} L1", rate(pps))
}

/// Adds the lines with the latency of the device alone, as a wiretap observed it. The rest of a packet's latency is in
/// the generator's sockets and links.
fn inside(inside: &Inside, lines: &mut Vec<String>) {
    lines.push(match &inside.summary {
        Some(latency) => format!(
            "device     {}  (between its wires, as a tap saw {} packets enter; lost inside {})",
            percentiles(latency),
            inside.entered,
            inside.lost
        ),
        None => "device     no data: the tap saw no packet on both wires".to_string(),
    });
    if inside.missed > 0 {
        lines.push(format!(
            "device     the tap missed {} frames: its loss counts are unreliable",
            inside.missed
        ));
    }
}

/// Returns the line about energy (in watts, if energy was measured) and processor time during the traffic; none if
/// neither is known.
fn energy_line(energy: &EnergyUse) -> Option<String> {
    let watts = energy.watts;
    let mut parts: Vec<String> = watts
        .map(|watts| format!("{watts:.2} W ({})", energy.source))
        .into_iter()
        .collect();
    if let (Some(share), Some(cpu)) = (energy.device_cpu_share, energy.device_cpu) {
        parts.push(format!(
            "device on the CPU {:.1} % of the time (user {:.2} s, system {:.2} s)",
            share * 100.0,
            cpu.user_s,
            cpu.system_s
        ));
    }
    if let Some(share) = energy.device_core_busy_share {
        parts.push(format!("its core busy {:.1} %", share * 100.0));
    }
    (!parts.is_empty()).then(|| format!("energy     {}", parts.join(", ")))
}

/// Returns the line with the statistics of the device's worker: time per packet and batch size.
fn work_line(work: &DeviceWork) -> String {
    format!(
        "work       the device took {} a packet, {:.1} in a batch",
        time(work.packet_ns),
        work.batch
    )
}

/// Returns a text for each count of packets that a port lost, such as packets received while its ring was full. Losses
/// on links are not included.
pub fn port_losses<'a>(
    ports: impl Iterator<Item = (&'a String, &'a PortCounters)>,
) -> impl Iterator<Item = String> {
    ports.flat_map(|(name, c)| {
        let losses = [
            ("received while its ring was full", c.rx_overrun),
            ("received with an impossible description", c.rx_malformed),
            ("received too long for a buffer", c.rx_too_long),
            ("too long to send on this link", c.tx_too_long),
            ("refused by the kernel or the peer", c.tx_failed),
        ];
        let some = losses.into_iter().filter(|(_, n)| *n > 0);
        some.map(move |(what, n)| format!("{name}: {n} {what}"))
    })
}

/// The summary that `taut generate --rate max --json` and `--cores` print.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FloodSummary {
    /// The constant `summary`, which distinguishes this line from other lines.
    pub event: &'static str,
    /// Requested packets per second; none for as many as the port accepts.
    pub asked_pps: Option<f64>,
    /// Number of workers that sent together; none if none were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Packets that each worker sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sent_by_worker: Vec<u64>,
    /// Packet counts of all workers together.
    pub flow: Flow,
    /// Packets per second that were sent.
    pub sent_pps: f64,
    /// Received packets per second.
    pub received_pps: f64,
    /// The device, if taut set it up.
    pub device: Option<MeasuredDevice>,
    /// The software versions that affect the results.
    pub versions: Versions,
}

impl FloodSummary {
    /// Summarises a flood.
    pub fn of(flow: Flow, device: Option<MeasuredDevice>) -> Self {
        Self {
            event: "summary",
            asked_pps: None,
            workers: None,
            sent_by_worker: Vec::new(),
            sent_pps: flow.sent_pps(),
            received_pps: flow.received_pps(),
            flow,
            device,
            versions: Versions::here(),
        }
    }

    /// Summarises the counts of workers that sent together, at `asked_pps` packets per second or as many as the port
    /// accepts.
    pub fn of_workers(flows: &[Flow], asked_pps: Option<f64>) -> Self {
        Self {
            asked_pps,
            workers: Some(flows.len()),
            sent_by_worker: flows.iter().map(|flow| flow.sent).collect(),
            ..Self::of(Flow::sum(flows), None)
        }
    }

    /// Returns the counts and rates of the flood, of frames with this mean size, as one line for a terminal.
    pub fn line(&self, average_bytes: f64) -> String {
        let flow = &self.flow;
        let workers = match self.workers {
            Some(workers) => format!(" by {workers} workers"),
            None => String::new(),
        };
        let not_sent = match self.asked_pps {
            Some(_) => format!(
                "; refused by a full ring {}, never sent {}",
                flow.refused, flow.unsent
            ),
            None => String::new(),
        };
        format!(
            "sent {} packets in {:.3} s ({}){workers}, received {} ({}){not_sent}; without stamps, so nothing else was \
             measured",
            flow.sent,
            flow.seconds,
            rates(self.sent_pps, average_bytes),
            flow.received,
            rate(self.received_pps)
        )
    }

    /// Checks that the requested rate was offered. The check succeeds without a requested rate, and for a run that was
    /// stopped.
    ///
    /// # Errors
    /// Returns an error if the generator left more than a hundredth of the scheduled packets unsent.
    pub fn verdict(&self) -> Result<(), LimitMissed> {
        let flow = &self.flow;
        let asked_pps = self.asked_pps.filter(|_| !flow.stopped);
        match asked_pps.filter(|_| flow.is_behind()) {
            Some(asked_pps) => Err(LimitMissed::Unsent {
                asked_pps,
                unsent: flow.unsent,
                owed: flow.sent + flow.refused + flow.unsent,
                starved: false,
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::summary::TrafficSummary;
    use super::*;

    #[test]
    fn send_gaps_and_foreign_packets_are_explained() {
        let example = TrafficSummary::example_json();
        let mut stream = serde_json::from_value::<TrafficSummary>(example)
            .unwrap()
            .streams
            .first;
        stream.send_gap_ns.as_mut().unwrap().mean_squared_error_ns2 = 9e6;
        let line = gaps_line(&stream).unwrap();
        assert!(line.contains("RMS error 3.00 µs  (n = "), "{line}");
        assert!(line.contains(" during preemption, "), "{line}");
        for (foreign, end) in [
            (0, "foreign 0"),
            (
                6,
                "foreign 6 (not the generator's, such as neighbour discovery)",
            ),
        ] {
            stream.tally.foreign = foreign;
            let mut lines = Vec::new();
            packets(&stream, 64.0, &mut lines);
            assert!(lines[1].ends_with(end), "{lines:?}");
        }
    }
}
