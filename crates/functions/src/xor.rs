//! Combines every byte of UDP payloads with one key by exclusive or: the cheapest function that reads and writes the
//! complete payload. A second pass restores the payload. (Xiang et al., JSAC 2019.)

use serde::Deserialize;
use taut_function::datagram::Seen;
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Needs, SettingsError, Spread, settings,
};
use taut_port::Batch;
use taut_xdp::functions::KernelFunction;

pub(crate) const ENTRY: Entry = Entry {
    name: "xor",
    summary: "XORs every byte of UDP payloads with a key and updates the checksum",
    class: Class::Basic,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        Ok(Box::new(Xor {
            key: key(table)?,
            changed: 0,
            passed: 0,
            malformed: 0,
        }) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::Frames(in_kernel),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[("key", "required", "0 to 255")];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    key: i64,
}

fn key(table: toml::Table) -> Result<u8, SettingsError> {
    let Settings { key } = settings(table)?;
    u8::try_from(key).map_err(|_| SettingsError(format!("key = {key}: expected 0 to 255")))
}

/// Returns the version of the function that runs in XDP programs.
fn in_kernel(table: toml::Table, _: usize) -> Result<KernelFunction, SettingsError> {
    key(table).map(|key| KernelFunction::Xor { key })
}

struct Xor {
    key: u8,
    changed: u64,
    passed: u64,
    malformed: u64,
}

impl Function for Xor {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, _: &Context) {
        batch.read_headers();
        for i in 0..batch.len() {
            if !batch.is_kept(i) {
                continue;
            }
            let headers = batch.headers(i);
            let frame = batch.packet_mut_but_headers(i).bytes_mut();
            match Seen::of(&headers, frame) {
                Seen::Datagram(it) => {
                    let before = it.sum(frame);
                    frame[it.payload()]
                        .iter_mut()
                        .for_each(|byte| *byte ^= self.key);
                    it.update_checksum(frame, before);
                    self.changed += 1;
                }
                Seen::Other => self.passed += 1,
                Seen::Malformed => {
                    batch.mark_dropped(i);
                    self.malformed += 1;
                }
            }
        }
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("changed", self.changed),
            ("passed: no whole UDP datagram", self.passed),
            ("dropped: malformed", self.malformed),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use taut_port::PoolHandle;
    use taut_wire::{Ethernet, Ipv4, Udp, UdpFlow};

    fn process(xor: &mut dyn Function, frame: &[u8]) -> (Vec<u8>, bool) {
        let pool = PoolHandle::new(1, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
        xor.process(&mut batch, &Context::default());
        (batch.packets()[0].bytes().to_vec(), batch.is_kept(0))
    }

    fn xor(key: u8) -> Box<dyn Function> {
        (ENTRY.build)(format!("key = {key}").parse().unwrap()).unwrap()
    }

    fn is_checksum_right(frame: &[u8]) -> bool {
        let ethernet = Ethernet::new(frame).unwrap();
        let ip = Ipv4::new(ethernet.payload()).unwrap();
        let udp = Udp::new(ip.payload()).unwrap();
        udp.verify_checksum(ip.pseudo_header(udp.length())).is_ok()
    }

    proptest! {
        #[test]
        fn xor_preserves_checksum_validity_and_two_passes_restore_the_payload(
            key: u8, size in 64_usize..1500, noise: u64
        ) {
            let mut frame = UdpFlow::default().frame(size).unwrap();
            let mut random = fastrand::Rng::with_seed(noise);
            // The frame gets the checksum of the new payload.
            random.fill(&mut frame[42..]);
            let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
            let mut ip = Ipv4::new(ethernet.payload_mut()).unwrap();
            let length = ip.payload().len() as u16;
            let pseudo_header = ip.pseudo_header(length);
            Udp::new(ip.payload_mut()).unwrap().fill_checksum(pseudo_header);
            let mut function = xor(key);
            let (changed, kept) = process(&mut *function, &frame);
            prop_assert!(kept && is_checksum_right(&changed));
            prop_assert_eq!(&changed[..40], &frame[..40]);
            for (new, old) in changed[42..].iter().zip(&frame[42..]) {
                prop_assert_eq!(new ^ old, key);
            }
            prop_assert_eq!(process(&mut *function, &changed).0, frame.clone());
            // A wrong checksum stays wrong, and a missing checksum stays missing.
            frame[41] ^= 1;
            prop_assert!(!is_checksum_right(&process(&mut *function, &frame).0));
            frame[40..42].fill(0);
            prop_assert_eq!(&process(&mut *function, &frame).0[40..42], &[0, 0]);
        }
    }

    #[test]
    fn non_udp_packets_pass_and_truncated_packets_are_dropped() {
        let mut function = xor(0x5A);
        let frame = UdpFlow::default().frame(64).unwrap();
        let mut tcp = frame.clone();
        tcp[23] = 6;
        assert_eq!(process(&mut *function, &tcp), (tcp, true));
        assert_eq!(
            process(&mut *function, &frame[..40]),
            (frame[..40].to_vec(), false)
        );
        process(&mut *function, &frame);
        let counts: Vec<u64> = function.outcomes().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [1, 1, 1]);
        let wrong = |text: &str| (ENTRY.build)(text.parse().unwrap()).err().unwrap().0;
        assert!(wrong("key = 256").contains("0 to 255"));
        assert!(wrong("").contains("key"));
    }
}
