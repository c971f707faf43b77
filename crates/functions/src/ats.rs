//! ATS: appends two timestamps to UDP payloads, the receive time and the send time. (Xiang et al., JSAC 2019.)

use serde::Deserialize;
use std::time::Duration;
use taut_function::datagram::{Datagram, Seen};
use taut_function::mtu::Mtu;
use taut_function::resize::move_start;
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Needs, SettingsError, Spread, settings,
};
use taut_port::{Batch, Packet, PoolHandle, PortError};
use taut_sys::{Clock, ClockReading, StampClock, ticks};
use taut_xdp::functions::KernelFunction;

pub(crate) const ENTRY: Entry = Entry {
    name: "ats",
    summary: "appends two timestamps to UDP payloads: received, handed on",
    class: Class::Basic,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        let Settings { mtu } = settings(table)?;
        Ok(Box::new(Ats {
            mtu,
            machine: None,
            counts: [0; OUTCOMES.len()],
        }) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::Frames(in_kernel),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[(
    "mtu",
    "1500",
    "longest IP packet that may leave, 576 to 65535 bytes; longer ones are dropped",
)];

/// The number of buffers for copies of packets without headroom; this many copies may wait to be sent.
const POOL_SLOTS: u32 = 2048;
/// The length of both timestamps in bytes.
const TRAILER_LEN_BYTES: usize = 16;
/// The duration of a calibration. Its error of about one part per million applies to the time between a clock reading
/// and a batch.
const CALIBRATION: Duration = Duration::from_millis(20);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    mtu: Mtu,
}

/// Returns the version of the function that runs in XDP programs.
fn in_kernel(table: toml::Table, _: usize) -> Result<KernelFunction, SettingsError> {
    settings(table).map(|Settings { mtu }| KernelFunction::Ats { mtu: mtu.0 })
}

/// The result of processing one packet; packets are counted by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Stamped,
    Passed,
    TooBig,
    NoRoom,
    Malformed,
}

/// The names of the counters of packets by result, in the order of [`Outcome`].
const OUTCOMES: [&str; 5] = [
    "stamped",
    "passed: no whole UDP datagram",
    "dropped: too big for the MTU",
    "dropped: no room",
    "dropped: malformed",
];

struct Ats {
    mtu: Mtu,
    machine: Option<(Clock, PoolHandle)>,
    counts: [u64; OUTCOMES.len()],
}

impl Ats {
    fn stamp(
        packet: &mut Packet,
        it: Datagram,
        mtu: Mtu,
        pool: &PoolHandle,
        stamps_ns: impl FnOnce() -> [u64; 2],
    ) -> Outcome {
        if it.end - it.ip + TRAILER_LEN_BYTES > mtu.0 {
            return Outcome::TooBig;
        }
        let before = it.sum(packet.bytes());
        packet.truncate(it.end as u16);
        // There is headroom but no tailroom: the whole packet moves.
        if !move_start(packet, it.end, 0, TRAILER_LEN_BYTES, pool) {
            return Outcome::NoRoom;
        }
        let frame = packet.bytes_mut();
        let stamps = stamps_ns().map(u64::to_be_bytes);
        frame[it.end..].copy_from_slice(stamps.as_flattened());
        it.ends_with(frame).update_checksum(frame, before);
        Outcome::Stamped
    }
}

impl Function for Ats {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let pool = PoolHandle::new(POOL_SLOTS, false)?;
        self.machine = Some((Clock::calibrate(CALIBRATION), pool));
        Ok(())
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let Some((clock, pool)) = &self.machine else {
            return;
        };
        // The clock is read through the vDSO, without a system call.
        let Some(now) = ClockReading::now(StampClock::Monotonic) else {
            return;
        };
        let waited_ns = clock.to_ns(now.ticks.saturating_sub(context.now_ticks)) as u64;
        let received_ns = now.ns.saturating_sub(waited_ns);
        let stamps_ns = || {
            let since_ns = clock.to_ns(ticks().saturating_sub(now.ticks)) as u64;
            [received_ns, now.ns + since_ns]
        };
        for i in 0..batch.len() {
            if !batch.is_kept(i) {
                continue;
            }
            let headers = batch.headers(i);
            let packet = batch.packet_mut(i);
            let outcome = match Seen::of(&headers, packet.bytes()) {
                Seen::Datagram(it) => Self::stamp(packet, it, self.mtu, pool, stamps_ns),
                Seen::Other => Outcome::Passed,
                Seen::Malformed => Outcome::Malformed,
            };
            self.counts[outcome as usize] += 1;
            if !matches!(outcome, Outcome::Stamped | Outcome::Passed) {
                batch.mark_dropped(i);
            }
        }
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        OUTCOMES.into_iter().zip(self.counts).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_function::testing::batch_of;
    use taut_wire::{Ethernet, Ipv4, Ipv6, Udp, UdpFlow};

    fn ats(settings: &str) -> Box<dyn Function> {
        let mut ats = (ENTRY.build)(settings.parse().unwrap()).unwrap();
        ats.prepare().unwrap();
        ats
    }

    fn through(ats: &mut dyn Function, frame: &[u8], headroom: u16) -> Option<Vec<u8>> {
        let mut batch = batch_of(frame, headroom);
        let now_ticks = ticks();
        let context = Context {
            now_ticks,
            ..Context::default()
        };
        std::thread::sleep(Duration::from_millis(2));
        ats.process(&mut batch, &context);
        let bytes = batch.packets()[0].bytes().to_vec();
        batch.is_kept(0).then_some(bytes)
    }

    fn monotonic_ns() -> u64 {
        ClockReading::now(StampClock::Monotonic).unwrap().ns
    }

    #[test]
    fn datagrams_get_ordered_timestamps_and_correct_lengths_and_checksums() {
        let mut ats = ats("");
        for v6 in [false, true] {
            for (size, headroom) in [(100, 0), (101, 15), (1400, 16), (64 + 27, 100)] {
                let mut flow = UdpFlow::default();
                if v6 {
                    flow.src_ip = "2001:db8::1".parse().unwrap();
                    flow.dst_ip = "2001:db8::2".parse().unwrap();
                }
                let plain = flow.frame(size).unwrap();
                let mut padded = plain.clone();
                padded.extend([9; 3]);
                let before = monotonic_ns();
                let got = through(&mut *ats, &padded, headroom).unwrap();
                let after = monotonic_ns();
                assert_eq!(got.len(), plain.len() + 16);
                let ethernet = Ethernet::new(&got[..]).unwrap();
                let (sound, payload) = if v6 {
                    let ip = Ipv6::new(ethernet.payload()).unwrap();
                    let udp = Udp::new(ip.payload()).unwrap();
                    let pseudo_header =
                        ip.pseudo_header(taut_wire::IpProtocol::UDP, u32::from(udp.length()));
                    (udp.verify_checksum(pseudo_header), udp.payload().to_vec())
                } else {
                    let ip = Ipv4::new(ethernet.payload()).unwrap();
                    ip.verify_checksum().unwrap();
                    let udp = Udp::new(ip.payload()).unwrap();
                    let pseudo_header = ip.pseudo_header(udp.length());
                    (udp.verify_checksum(pseudo_header), udp.payload().to_vec())
                };
                sound.unwrap();
                let udp_at = if v6 { 54 } else { 34 };
                let (old, stamps) = payload.split_at(payload.len() - 16);
                assert_eq!(old, &plain[udp_at + 8..]);
                let stamp = |at: usize| u64::from_be_bytes(*stamps[at..].first_chunk().unwrap());
                let (received, sent) = (stamp(0), stamp(8));
                // The calibration takes 20 ms. Its error is some microseconds while the system corrects its clock.
                assert!(before <= received + 50_000, "{before} {received}");
                assert!(received + 1_900_000 <= sent, "{received} {sent}");
                assert!(sent <= after + 50_000, "{sent} {after}");
            }
        }
        assert_eq!(ats.outcomes()[0].1, 8);
    }

    #[test]
    fn non_udp_packets_pass_and_oversized_datagrams_are_dropped() {
        let mut ats = ats("mtu = 600");
        let frame = UdpFlow::default().frame(602).unwrap();
        assert!(through(&mut *ats, &frame, 50).is_some());
        let frame = UdpFlow::default().frame(603).unwrap();
        assert_eq!(through(&mut *ats, &frame, 50), None);
        assert_eq!(through(&mut *ats, &frame[..40], 50), None);
        let mut tcp = frame.clone();
        tcp[23] = 6;
        assert_eq!(through(&mut *ats, &tcp, 0), Some(tcp.clone()));
        let counts: Vec<u64> = ats.outcomes().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [1, 1, 1, 0, 1]);
        let wrong = (ENTRY.build)("mtu = 9".parse().unwrap()).err().unwrap();
        assert!(wrong.0.contains("576 to 65535"));
    }
}
