//! Tests that a dying auxiliary thread ends the workers. The test has its own file because deaths affect the whole
//! process.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_engine::{End, Flush, Worker};
use taut_function::{Context, Function, Handler, Punted, Send};
use taut_port::{Batch, PortSpec, Punt, Resources};
use taut_sys::{Clock, at_death, dead_threads};

const PATIENCE: Duration = Duration::from_secs(60);

/// A function that punts all packets, to a handler that panics on the first one.
struct Dies;

impl Function for Dies {
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        for index in 0..batch.len() {
            batch.mark_punted(index, Punt::Local);
        }
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        Some(Box::new(Self))
    }
}

impl Handler for Dies {
    fn handle(&mut self, punted: &Punted<'_>, _: &mut Send<'_>) -> bool {
        panic!("no way with {} bytes", punted.frame.len());
    }
}

#[test]
fn a_handler_that_panics_ends_the_worker_and_is_named() {
    let clock = Clock::calibrate(Duration::from_millis(2));
    let stop = Arc::new(AtomicBool::new(false));
    let (dead, late) = (Arc::clone(&stop), Arc::clone(&stop));
    let _watch = at_death(move || dead.store(true, Ordering::Relaxed));
    std::thread::spawn(move || {
        // The test fails after a timeout if the workers do not end.
        let begun = Instant::now();
        while !late.load(Ordering::Relaxed) {
            if begun.elapsed() > PATIENCE {
                late.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let specs = ["null:source=32", "null:"].map(|text| PortSpec::parse(text).unwrap());
    let mut resources = Resources::for_ports(&specs).unwrap();
    let ports = specs.iter().map(|spec| spec.open(&mut resources).unwrap());
    let ports: Vec<_> = ports.collect();
    let mut worker = Worker::new(ports, vec![Box::new(Dies)], Flush::default(), &clock);
    worker.start_slow_path().unwrap();
    assert_eq!(worker.run(&stop), End::Stopped);
    let dead = dead_threads();
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert_eq!(dead[0].name, "slow-path");
    assert!(dead[0].message.starts_with("no way with "), "{dead:?}");
}
