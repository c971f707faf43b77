//! Several workers that send together. Each worker runs on a CPU of its own and has its part of every port, and all
//! workers follow one schedule.

use super::run::Setup;
use crate::device::{DeviceUnderTest, RunError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use taut_port::{Part, PortSpec};
use taut_sys::ticks;
use taut_traffic::{Flood, Flow, Gateways, Instrument, Share};

/// Time from the start command until the first packet; in this time, all workers wake up.
const AWAKE: Duration = Duration::from_millis(2);

/// Sends as [`super::measure_flood`] does, with a worker on each of `cores`, and returns the counts of each. Ports stay
/// open until all workers have received the packets in flight.
///
/// # Errors
/// Returns an error if ports cannot be split into one part per worker, a CPU cannot be used, or there is no connection.
/// A device that taut sets up is an error too.
pub fn measure_flood_together(
    setup: &Setup,
    cores: &[usize],
    flood: Flood,
    stop: &AtomicBool,
) -> Result<Vec<Flow>, RunError> {
    let DeviceUnderTest::Ports(specs) = setup.device() else {
        let why = "a device that is made is set up for one worker";
        return Err(RunError::Device(why.to_string()));
    };
    let mut parts = Vec::new();
    for spec in specs {
        parts.push(spec.parts(cores.len())?.into_iter());
    }
    let (gateways, begin_ticks) = (Gateways::default(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (mut ways, mut threads) = (Vec::new(), Vec::new());
        let mut well = true;
        for (number, core) in cores.iter().enumerate() {
            let worker = Worker {
                setup,
                specs,
                core: *core,
                number,
                of: cores.len(),
                flood,
                begin_ticks: &begin_ticks,
                stop,
            };
            let parts = parts.iter_mut().filter_map(Iterator::next).collect();
            let gateways = gateways.clone();
            let (tell, told) = channel();
            let (let_go, go) = channel();
            threads.push(scope.spawn(move || worker.run(parts, gateways, tell, &go)));
            // Workers open the ports one after another, like the workers of a chain.
            well = told.recv().is_ok();
            ways.push(Way { told, let_go });
            if !well {
                break;
            }
        }
        if well {
            send_together(&ways, setup, &begin_ticks);
        }
        // Dropping the channels makes workers that wait for the next command close their ports.
        drop(ways);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let mut flows = Vec::new();
        for ended in ended {
            flows.extend(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(flows)
    })
}

/// Channels between the main thread and a worker.
struct Way {
    /// Receives a message when the worker is ready for its next step. The worker closes the channel when it has sent
    /// and received all packets.
    told: Receiver<()>,
    let_go: Sender<()>,
}

/// Lets all workers continue with their next step. Errors are ignored here, because the closed channel `told` of a
/// worker already shows that the worker has ended.
fn all_go(ways: &[Way]) {
    for way in ways {
        let _ = way.let_go.send(());
    }
}

/// Lets the workers wait for their links and then send, and waits until the workers have received all packets. If the
/// links of a worker do not come up, no worker sends.
fn send_together(ways: &[Way], setup: &Setup, begin_ticks: &AtomicU64) {
    all_go(ways);
    let well = ways.iter().all(|way| way.told.recv().is_ok());
    if well {
        let awake = setup.clock().to_ticks(AWAKE.as_nanos() as f64) as u64;
        begin_ticks.store(ticks() + awake, Ordering::Relaxed);
        all_go(ways);
        // Each worker closes its channel when it has received all packets.
        ways.iter().for_each(|way| _ = way.told.recv());
    }
}

struct Worker<'a> {
    setup: &'a Setup,
    specs: &'a [PortSpec],
    core: usize,
    number: usize,
    of: usize,
    flood: Flood,
    begin_ticks: &'a AtomicU64,
    stop: &'a AtomicBool,
}

impl Worker<'_> {
    /// Sends this worker's part of the traffic, and returns its packet counts; none if another worker could not start.
    fn run(
        self,
        parts: Vec<Part>,
        gateways: Gateways,
        tell: Sender<()>,
        go: &Receiver<()>,
    ) -> Result<Option<Flow>, RunError> {
        let _end_all = EndAll(self.stop);
        taut_host::pin_current_thread(self.core)?;
        let traffic = self.setup.traffic().clone().share(self.number, self.of);
        let clock = *self.setup.clock();
        let mut instrument = Instrument::open_parts(self.specs, parts, traffic, clock, gateways)?;
        let next = || tell.send(()).is_ok() && go.recv().is_ok();
        if !next() {
            return Ok(None);
        }
        instrument.wait_for_links(self.setup.patience(), self.stop)?;
        if !next() {
            return Ok(None);
        }
        let share = Share {
            begin_ticks: self.begin_ticks.load(Ordering::Relaxed),
            number: self.number,
            of: self.of,
        };
        let flood = Flood {
            share: Some(share),
            ..self.flood
        };
        let mut flow = instrument.flood(flood, self.stop);
        flow.received_in_all += instrument.drain();
        drop(tell);
        // The ports stay open until all workers are done: a peer closes all rings of a port when the first one is
        // closed.
        let _ = go.recv();
        Ok(Some(flow))
    }
}

/// A guard that ends all workers if its thread panics, because the remaining results would be incomplete.
struct EndAll<'a>(&'a AtomicBool);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_traffic::Traffic;

    /// Sends from two workers on one available CPU, at the given rate for 50 ms.
    fn send(
        ports: &[&str],
        settings: &[(&str, &str)],
        rate_pps: Option<f64>,
    ) -> Result<Vec<Flow>, RunError> {
        let specs = ports.iter().map(|port| PortSpec::parse(port).unwrap());
        let device = DeviceUnderTest::Ports(specs.collect());
        let traffic = Traffic::of_settings(settings).unwrap();
        let setup = Setup::new("taut".into(), device, traffic, None, None)?;
        let setup = setup.patient_for(Duration::from_millis(50));
        let flood = Flood {
            rate_pps,
            warm_up: Duration::from_millis(2),
            duration: Duration::from_millis(50),
            share: None,
        };
        let cpu = *taut_host::allowed_cpus().first().unwrap();
        measure_flood_together(&setup, &[cpu, cpu], flood, &AtomicBool::new(false))
    }

    #[test]
    fn two_workers_share_the_offered_rate_and_receive_all_packets() {
        let flows = send(
            &["pair:sent-together", "pair:sent-together"],
            &[],
            Some(40_000.0),
        )
        .unwrap();
        let all = Flow::sum(&flows);
        assert_eq!(flows.len(), 2);
        let due = all.sent + all.refused + all.unsent;
        assert!((1_998..=2_002).contains(&due), "{flows:?}");
        // The counts of received packets include those of the warm-up.
        assert!(all.received_in_all >= all.sent, "{flows:?}");
        assert!(
            flows.iter().all(|flow| flow.received_in_all > 0),
            "{flows:?}"
        );
    }

    #[test]
    fn workers_that_fail_to_start_report_the_reason() {
        let of = |ports: &[&str], settings: &[(&str, &str)]| {
            send(ports, settings, None).unwrap_err().to_string()
        };
        let shared = of(&["null:", "pcap:x.pcap,role=write"], &[]);
        assert!(shared.contains("2 workers cannot share it"), "{shared}");
        let silent = of(&["null:"], &[("gateway", "198.18.0.99")]);
        assert!(silent.contains("198.18.0.99"), "{silent}");
    }
}
