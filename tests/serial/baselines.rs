//! The third-party forwarders as `taut demo` runs them: each installed forwarder forwards packets in both directions
//! without loss, and leaves nothing behind.

use crate::support::leftovers::Watch;
use crate::support::program::{PATIENCE, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, scratch, taut};
use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};
use taut_bench::device::{Choice, chosen, flow_through, ports_to};
use taut_host::baseline::{Baseline, Frames, Reach, Running, baselines};
use taut_host::{Testbed, choose_cores, pin_current_thread};
use taut_port::{Batch, Link, Port, PortCounters, PortError, PortSpec};
use taut_sys::Clock;
use taut_traffic::{Instrument, Stream, Summaries, Trial};

/// The rate in packets per second at which every forwarder loses no packet, also on a busy machine.
const RATE_PPS: f64 = 5_000.0;

fn named(id: &str) -> &'static Baseline {
    baselines().iter().find(|b| b.id == id).unwrap()
}

/// Returns the baseline `id` if it is installed on this machine; else prints that it is not.
fn installed(id: &str) -> Option<&'static Baseline> {
    let baseline = named(id);
    let (_, missing) = chosen(&Choice::parse(id).unwrap());
    let Some(missing) = missing.first() else {
        return Some(baseline);
    };
    let (why, how) = (&missing.why, &missing.how);
    println!("skipped: needs {} ({why}; {how})", baseline.label);
    None
}

/// A port of the generator that uses one of two open ports, and the other one while the direction is reversed. The
/// direction thus changes without closing a port.
struct Turning {
    ports: Rc<RefCell<Vec<Box<dyn Port>>>>,
    place: usize,
    is_turned: Rc<Cell<bool>>,
}

impl Turning {
    fn with<T>(&self, act: impl FnOnce(&mut dyn Port) -> T) -> T {
        let place = self.place ^ usize::from(self.is_turned.get());
        act(&mut *self.ports.borrow_mut()[place])
    }
}

impl Port for Turning {
    fn rx(&mut self, batch: &mut Batch) -> usize {
        self.with(|port| port.rx(batch))
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        self.with(|port| port.tx(batch))
    }

    fn link(&mut self) -> Link {
        self.with(|port| port.link())
    }

    fn counters(&mut self) -> PortCounters {
        self.with(|port| port.counters())
    }
}

/// Starts the baseline and sends through it in both directions, one after the other, over the same open ports. They
/// stay open because DPDK's memif driver may crash when a peer leaves a busy port.
fn pass(baseline: &Baseline, folder: &Path) -> Result<(), String> {
    let cores = choose_cores();
    let testbed = baseline.on_interfaces().then(|| {
        Testbed::builder()
            .steering(baseline.steering(cores.device))
            .build()
            .unwrap()
    });
    let mut running = baseline
        .start(testbed.as_ref(), cores.device, folder)
        .unwrap();
    let _inside = testbed.as_ref().map(|t| t.enter_generator().unwrap());
    pin_current_thread(cores.generator).unwrap();
    let stop = AtomicBool::new(false);
    let clock = Clock::calibrate(Duration::from_millis(20));
    let stream = |back| Stream::new(&flow_through(baseline.frames, back), 64).unwrap();
    let specs = ports_to(baseline, folder).map(|spec| PortSpec::parse(&spec).unwrap());
    let ports = Rc::<RefCell<Vec<Box<dyn Port>>>>::default();
    let is_turned = Rc::<Cell<bool>>::default();
    let instrument = Instrument::open_with(&specs, stream(false), clock, |place, open| {
        let turning = Turning {
            ports: Rc::clone(&ports),
            place,
            is_turned: Rc::clone(&is_turned),
        };
        turning.ports.borrow_mut().push(open()?);
        Ok::<Box<dyn Port>, PortError>(Box::new(turning))
    });
    let mut instrument = instrument.unwrap();
    let linked = instrument.wait_for_links(PATIENCE, &stop);
    running.check().unwrap();
    linked.unwrap();
    let mut outcome = Ok(());
    for back in [false, true] {
        is_turned.set(back);
        instrument.set_traffic(stream(back).into()).unwrap();
        let trial = Trial {
            rate_pps: RATE_PPS,
            duration: Duration::from_millis(200),
        };
        // The first frames of a flow may take a slow path.
        instrument.run(trial, &mut Summaries::new(&clock), &stop);
        let tally = instrument.run(trial, &mut Summaries::new(&clock), &stop);
        let is_whole = tally.sent == trial.packets() && tally.received == tally.sent;
        outcome = outcome.and(match is_whole && tally.corrupt == 0 {
            true => Ok(()),
            false => Err(format!("{} back={back}: {tally:?}", baseline.id)),
        });
    }
    running.check().unwrap();
    // The ports are still open, as DPDK's memif driver may crash when a peer leaves a busy port.
    running.stop().unwrap();
    outcome
}

/// Works like [`pass`] in one direction, with the generator in another process, because DPDK keeps its resources in the
/// process of the test.
fn pass_from_outside(baseline: &Baseline, folder: &Path, back: bool) -> Result<(), String> {
    let cores = choose_cores();
    let mut running = baseline.start(None, cores.device, folder).unwrap();
    let core = cores.generator.to_string();
    let mut generate = taut(&["generate", "--max-loss", "0", "--core", &core]);
    generate.args(["--rate", &RATE_PPS.to_string(), "--seconds", "0.4"]);
    // Open vSwitch tries to connect to its peer every few seconds.
    generate.args(["--wait", "30"]);
    // After Open vSwitch connects, it forwards nothing for 0.2 s.
    generate.args(["--warm-up", "0.5"]);
    let mut specs = ports_to(baseline, folder);
    if back {
        specs.reverse();
    }
    for spec in specs {
        generate.args(["--port", &spec]);
    }
    let generated = run(&mut generate);
    running.check().unwrap();
    running.stop().unwrap();
    match generated.code() {
        Some(0) => Ok(()),
        Some(1) => Err(generated.stdout + &generated.stderr),
        // On a busy machine, the baseline may not have tried to connect in time.
        Some(3) if generated.stderr.contains("its other end is not up yet") => {
            Err(generated.stderr)
        }
        _ => panic!("{}: {generated:?}", baseline.id),
    }
}

fn passes_both_ways_and_leaves_nothing(id: &str) {
    let Some(baseline) = installed(id) else {
        return;
    };
    let _turn = alone();
    let watch = Watch::begin();
    // The test uses a separate thread, because the thread may be pinned and enter a namespace.
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let folder = || tempfile::tempdir_in(watch.temporary()).unwrap();
            if baseline.reach == Reach::Vhost {
                for back in [false, true] {
                    undisturbed(|| pass_from_outside(baseline, folder().path(), back));
                }
            } else {
                undisturbed(|| pass(baseline, folder().path()));
            }
        });
        done.join().unwrap();
    });
    watch.nothing_is_left();
}

#[test]
fn linux_routing_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("veth-routing");
}

#[test]
fn testpmd_on_memif_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("memif-testpmd-io");
}

#[test]
fn testpmd_that_swaps_addresses_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("memif-testpmd-macswap");
    passes_both_ways_and_leaves_nothing("memif-testpmd-5tswap");
}

#[test]
fn open_vswitch_on_memif_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("memif-ovs");
}

#[test]
fn l2fwd_on_memif_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("memif-l2fwd");
    passes_both_ways_and_leaves_nothing("memif-l2fwd-unbuffered");
}

#[test]
fn l3fwd_on_memif_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("memif-l3fwd-lpm");
    passes_both_ways_and_leaves_nothing("memif-l3fwd-fib");
}

#[test]
fn vpp_on_memif_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("memif-vpp");
}

#[test]
fn testpmd_on_vhost_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("vhost-testpmd-io");
}

#[test]
fn open_vswitch_on_vhost_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("vhost-ovs");
}

#[test]
fn testpmd_on_packet_sockets_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("veth-testpmd-af-packet");
}

#[test]
fn testpmd_on_af_xdp_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("veth-testpmd-af-xdp");
}

#[test]
fn open_vswitch_on_packet_sockets_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("veth-ovs");
}

#[test]
fn open_vswitch_on_af_xdp_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("veth-ovs-af-xdp");
}

#[test]
fn open_vswitch_with_dpdk_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("veth-ovs-dpdk");
}

#[test]
fn click_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("veth-click");
    passes_both_ways_and_leaves_nothing("veth-click-routing");
}

#[test]
fn suricata_in_line_passes_packets_both_ways() {
    passes_both_ways_and_leaves_nothing("veth-suricata");
    passes_both_ways_and_leaves_nothing("veth-suricata-rules");
}

#[test]
fn a_router_does_not_forward_frames_for_other_addresses() {
    let Some(baseline) = installed("veth-routing") else {
        return;
    };
    let _turn = alone();
    let folder = scratch();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let testbed = Testbed::builder().build().unwrap();
            let running: Running = baseline.start(Some(&testbed), 0, folder.path()).unwrap();
            let _inside = testbed.enter_generator().unwrap();
            let clock = Clock::calibrate(Duration::from_millis(20));
            let stream = Stream::new(&flow_through(Frames::Through, false), 64).unwrap();
            let specs = ports_to(baseline, folder.path()).map(|s| PortSpec::parse(&s).unwrap());
            let mut instrument = Instrument::open(&specs, stream, clock).unwrap();
            let trial = Trial {
                rate_pps: RATE_PPS,
                duration: Duration::from_millis(100),
            };
            let stop = AtomicBool::new(false);
            let tally = instrument.run(trial, &mut Summaries::new(&clock), &stop);
            assert!(tally.sent > 0 && tally.received == 0, "{tally:?}");
            running.stop().unwrap();
        });
    });
}

#[test]
fn the_router_resolves_its_neighbours_before_the_trial() {
    let _turn = alone();
    undisturbed(|| {
        let mut generate = taut(&["generate", "--device", "memif-route", "--rate", "max"]);
        let done = run(generate.args(["--seconds", "0.2", "--warm-up", "0.5", "--json"]));
        match done.last_json()["flow"]["received"].as_u64() {
            Some(1..) => Ok(()),
            _ => Err(format!("{done:?}")),
        }
    });
}

/// SIGKILL of the program that runs a baseline also ends the baseline's programs; the next run removes the files and
/// namespaces left behind.
#[test]
fn killing_the_demo_ends_the_programs_of_its_baselines() {
    let ids = ["memif-testpmd-io", "veth-ovs", "veth-ovs-dpdk"];
    let here: Vec<&str> = ids
        .into_iter()
        .filter(|id| installed(id).is_some())
        .collect();
    if here.is_empty() {
        return;
    }
    let _turn = alone();
    for id in here {
        let (watch, folder) = (Watch::begin(), scratch());
        let demo = |name: &str| {
            let mut command = taut(&["demo", "--quick", "--seconds", "0.1"]);
            command.args(["--repetitions", "1", "--devices", id, "--out"]);
            command.arg(folder.path().join(name));
            Program::start(watch.over(&mut command))
        };
        let mut killed = demo("killed");
        let program = if id.contains("ovs") {
            "ovs-vswitchd"
        } else {
            "dpdk-testpmd"
        };
        killed.wait_until("the baseline", |_, _| {
            watch.processes().iter().any(|p| p.contains(program))
        });
        killed.kill();
        let deadline = Instant::now() + PATIENCE;
        while let Some(left) = watch.processes().first() {
            assert!(Instant::now() < deadline, "still runs: {left}");
            sleep(Duration::from_millis(50));
        }
        // The next demo can start the baseline again.
        demo("next").finish().success();
        watch.nothing_is_left();
    }
}

#[test]
fn devices_are_listed_with_their_missing_requirements() {
    let listed = |path: &str| {
        let mut command = taut(&["demo", "--list-devices", "--json"]);
        let list = run(command.env("PATH", path)).success();
        serde_json::from_str::<Vec<serde_json::Value>>(&list.stdout).unwrap()
    };
    let ids = |list: &[serde_json::Value], by_default: bool| -> Vec<String> {
        list.iter()
            .filter(|row| row["by_default"] == by_default)
            .map(|row| row["id"].as_str().unwrap().to_string())
            .collect()
    };
    let here = listed(&std::env::var("PATH").unwrap());
    let others: Vec<String> = ids(&here, false)
        .into_iter()
        .filter(|id| !id.ends_with("-route"))
        .collect();
    let foreign: Vec<String> = baselines().iter().map(|b| b.id.to_string()).collect();
    assert_eq!(others, foreign);
    assert!(ids(&here, true).contains(&"veth-bridge".to_string()));
    // Without programs, the list explains how to install each third-party forwarder, and still contains taut's own.
    let nowhere = listed("/no/such/folder");
    for row in &nowhere {
        let id = row["id"].as_str().unwrap().to_string();
        let is_own = ids(&here, true).contains(&id) || id.ends_with("-route");
        let is_own_memif = is_own && row["name"].as_str().unwrap().starts_with("memif ");
        assert_eq!(row["available"], is_own_memif, "{row}");
        let detail = row["detail"].as_str().unwrap();
        let says_how = ["apt-get install", "taut ports"];
        assert!(
            is_own_memif || says_how.iter().any(|how| detail.contains(how)),
            "{row}"
        );
    }
}

#[test]
fn unavailable_devices_cause_a_one_line_error() {
    let _turn = alone();
    let unknown = run(&mut taut(&["demo", "--devices", "memif-idle,vpp"]));
    assert_eq!(unknown.code(), Some(2), "{unknown:?}");
    assert!(
        unknown.stderr.contains("unknown device `vpp`"),
        "{unknown:?}"
    );
    let folder = scratch();
    let out = folder.path().join("results");
    let mut command = taut(&["demo", "--quick", "--devices", "veth-click", "--out"]);
    command.arg(&out).env("PATH", "/no/such/folder");
    let none = run(&mut command);
    assert_eq!(none.code(), Some(3), "{none:?}");
    assert_eq!(none.stderr.lines().count(), 1, "{none:?}");
    assert!(
        none.stderr.contains("no device could be measured"),
        "{none:?}"
    );
    assert!(!out.exists());
}

#[test]
fn devices_without_forwarding_are_skipped_and_other_devices_are_measured() {
    let _turn = alone();
    let folder = scratch();
    let demo = |repetitions: &str, devices: &str, out: &str| {
        let mut command = taut(&["demo", "--quick", "--seconds", "0.1", "--json"]);
        command.args(["--repetitions", repetitions, "--devices", devices, "--out"]);
        let demo = Program::start(command.arg(folder.path().join(out)));
        demo.finish_within(Duration::from_secs(120))
    };
    let silent = "memif,function=impair(loss=1)";
    let summary = demo("2", &format!("{silent},memif-idle"), "both")
        .success()
        .stdout;
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let repetitions = |device: usize| summary["devices"][device]["repetitions"].as_u64();
    assert_eq!((repetitions(0), repetitions(1)), (Some(0), Some(2)));
    let head = fs::read_to_string(folder.path().join("both/experiment.json")).unwrap();
    let head: serde_json::Value = serde_json::from_str(&head).unwrap();
    assert_eq!(head["stage"], "finished");
    let left_out = &head["left_out"][0];
    let part = |name: &str, part: &str| left_out[name].as_str().unwrap().contains(part);
    assert!(
        part("what", "repetition 1, 2") && part("why", "came back"),
        "{head}"
    );
    assert!(part("how", "taut bench comparison --device"), "{head}");
    let none = demo("1", silent, "none");
    assert_eq!(none.code(), Some(3), "{none:?}");
    assert!(
        none.stderr.contains("no device could be measured"),
        "{none:?}"
    );
}
