//! Tests of the output of `taut ports --matrix`: frames pass every pair of ports that this machine can open, and their
//! copies are compared with the declarations of the backends.
#![allow(clippy::unwrap_used)]

use crate::frame_copy::count;
use crate::interface_tests::{Opened, Testbed, frame_bytes, open};
use crate::{Batch, Port, PortSpec, Resources, backends, copies};
use std::fs;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The timeout after which a test fails because an expected frame or link state does not come.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of frames sent through each pair of ports.
const FRAMES: u64 = 5;

/// The environment in which the tests open ports: a temporary folder, and network namespaces if they can be made.
struct Surroundings {
    folder: TempDir,
    bed: Option<Testbed>,
}

/// The link partner of a port under test: the program or interface that sends frames to the port and receives frames
/// from it.
enum Far {
    Port(Box<Opened>),
    /// The port has no link partner: it makes the frames that it receives, and discards the frames that it sends.
    Nobody,
}

impl Surroundings {
    /// Returns the spec of a port of kind `kind`, and the port's link partner; None if the machine lacks a requirement
    /// of the port. `place` is 0 for the port that receives and 1 for the one that sends.
    fn port(&self, kind: &str, place: usize) -> Option<(String, Far)> {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let far = |spec: &str| Far::Port(Box::new(open(spec).unwrap()));
        let end = format!("{kind}-{place}").replace([',', '='], "-");
        match kind {
            "null" => Some((["null:source=1", "null:"][place].to_string(), Far::Nobody)),
            "pcap" if place == 0 => {
                let name = file("in.pcap");
                let mut writer = open(&format!("pcap:{name},role=write")).unwrap();
                for number in 0..FRAMES {
                    writer.send(&frame_bytes(number, 100));
                }
                Some((format!("pcap:{name}"), Far::Nobody))
            }
            "pcap" => Some((format!("pcap:{},role=write", file("out.pcap")), Far::Nobody)),
            "pair" => {
                let spec = format!("pair:{}", file(&end));
                Some((spec.clone(), far(&spec)))
            }
            "memif,role=client" | "memif,role=server" => {
                let path = file(&end);
                let _ = fs::remove_file(&path);
                let (near, other) = if kind.ends_with("client") {
                    ("client", "server")
                } else {
                    ("server", "client")
                };
                let spec = |role| format!("memif:{path},role={role}");
                Some((spec(near), far(&spec(other))))
            }
            // The other end of the veth pair has a port of the same kind. AF_XDP ports use the first queue of the veth
            // pair, a packet socket sends on the queue of its core.
            "af_packet" | "af_xdp" => {
                let bed = self.bed.as_ref()?;
                let far = bed.in_right(|| far(&format!("{kind}:right{place}")));
                Some((format!("{kind}:left{place}"), far))
            }
            // The socket on the kernel's side can only be opened once the interface exists.
            "tap" => self
                .bed
                .as_ref()
                .map(|_| (format!("tap:tap{place}"), Far::Nobody)),
            _ => None,
        }
    }

    fn inside<T>(&self, action: impl FnOnce() -> T) -> T {
        match &self.bed {
            Some(bed) => bed.in_left(action),
            None => action(),
        }
    }

    /// Returns the copies per frame from a port of kind `from` to a port of kind `to`; None if the machine lacks one of
    /// these kinds.
    fn count(&self, from: &str, to: &str) -> Option<u64> {
        let (from_spec, mut source) = self.port(from, 0)?;
        let (to_spec, mut sink) = self.port(to, 1)?;
        let specs = [&from_spec, &to_spec].map(|text| PortSpec::parse(text).unwrap());
        let mut resources = Resources::for_ports(&specs).unwrap();
        let [mut a, mut b] = self.inside(|| {
            let ports = specs.each_ref().map(|s| {
                let deadline = Instant::now() + Duration::from_secs(10);
                loop {
                    match s.open(&mut resources) {
                        Ok(port) => break port,
                        // The kernel may still be deleting the interface of the previous pair.
                        Err(e) if e.to_string().contains("is taken") => {
                            assert!(Instant::now() < deadline, "{e}");
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
            });
            for (kind, place, far) in [(from, 0, &mut source), (to, 1, &mut sink)] {
                if kind == "tap" {
                    let socket = open(&format!("af_packet:tap{place}")).unwrap();
                    *far = Far::Port(Box::new(socket));
                }
            }
            ports
        });
        wait_for_links(&mut *a, &mut source);
        wait_for_links(&mut *b, &mut sink);
        if let Far::Port(source) = &mut source {
            for number in 0..FRAMES {
                source.send(&frame_bytes(number, 100));
            }
        }
        let before = count::so_far();
        let (mut batch, start) = (Batch::new(), Instant::now());
        while batch.len() < FRAMES as usize {
            a.rx(&mut batch);
            assert!(
                start.elapsed() < PATIENCE,
                "{from_spec} to {to_spec}: {batch:?} {:?} {:?}",
                a.counters(),
                a.link()
            );
        }
        // A port that makes its own frames may deliver more.
        let sent = batch.len() as u64;
        while !batch.is_empty() {
            b.tx(&mut batch);
            assert!(start.elapsed() < PATIENCE, "{to_spec}: {batch:?}");
        }
        let copies = count::so_far() - before;
        assert_eq!(copies % sent, 0, "{from_spec} to {to_spec}");
        if let Far::Port(sink) = &mut sink
            && from != "null"
        {
            let mut batch = Batch::new();
            sink.receive(&mut batch, FRAMES as usize);
            for (packet, number) in batch.packets().iter().zip(0..) {
                assert_eq!(packet.bytes(), frame_bytes(number, 100));
            }
        }
        Some(copies / sent)
    }
}

fn wait_for_links(near: &mut dyn Port, far: &mut Far) {
    let Far::Port(far) = far else { return };
    let start = Instant::now();
    while !(near.link().is_up() && far.port.link().is_up()) {
        assert!(start.elapsed() < PATIENCE, "{:?}", near.link());
    }
}

#[test]
fn the_number_of_frame_copies_equals_the_declared_number() {
    let surroundings = Surroundings {
        folder: tempfile::tempdir().unwrap(),
        bed: Testbed::new(2),
    };
    let mut counted = 0;
    for pair in copies(backends()) {
        let usable = |kind: &str| {
            let name = kind.split(',').next().unwrap_or_default();
            let backend = backends().iter().find(|b| b.name == name).unwrap();
            (backend.probe)().is_ok()
        };
        if !usable(&pair.from) || !usable(&pair.to) {
            continue;
        }
        if let Some(found) = surroundings.count(&pair.from, &pair.to) {
            assert_eq!(
                u64::from(pair.copies),
                found,
                "{} to {}",
                pair.from,
                pair.to
            );
            counted += 1;
        }
    }
    // The pairs of the five kinds that need neither privileges nor devices: null, memif in both roles, pair and pcap.
    assert!(counted >= 25, "{counted}");
}

#[test]
fn every_backend_declares_its_copies_and_copies_no_frame_twice() {
    let found = copies(backends());
    assert!(found.iter().all(|pair| pair.copies <= 1), "{found:?}");
    for backend in backends() {
        let named = |name: &str| name.split(',').next() == Some(backend.name);
        assert!(found.iter().any(|pair| named(&pair.from)), "{backend:?}");
        for handling in backend.handling {
            let key = handling.variant.split('=').next().unwrap_or_default();
            let known = backend.options.iter().any(|(option, _)| *option == key);
            assert!(known || key.is_empty(), "{backend:?}: no option {key}");
        }
    }
}
