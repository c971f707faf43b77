//! Links for the tests of the loop, and load generators on them.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::Stream;
use std::collections::VecDeque;
use std::time::Duration;
use taut_port::{Link, Packet};
use taut_wire::UdpFlow;

/// A looped link that passes every packet to a function.
pub(super) struct Loop {
    pub(super) wire: VecDeque<Packet>,
    pub(super) capacity: usize,
    /// True if the port returns the packets that were sent.
    pub(super) delivers: bool,
    pub(super) sent: u64,
    pub(super) harm: fn(u64, &mut Packet) -> Harm,
}

pub(super) enum Harm {
    None,
    Lose,
    Hold,
}

impl Port for Loop {
    fn rx(&mut self, batch: &mut Batch) -> usize {
        let there = if self.delivers { self.wire.len() } else { 0 };
        let n = there.min(batch.room());
        self.wire.drain(..n).for_each(|p| batch.push(p));
        n
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len().min(self.capacity - self.wire.len());
        batch.take_front(n, |mut packet| {
            match (self.harm)(self.sent, &mut packet) {
                Harm::None => self.wire.push_back(packet),
                Harm::Hold => self.wire.push_front(packet),
                Harm::Lose => {}
            }
            self.sent += 1;
        });
        n
    }

    fn link(&mut self) -> Link {
        Link::Up
    }

    fn counters(&mut self) -> PortCounters {
        PortCounters::default()
    }
}

pub(super) fn instrument(capacity: usize, harm: fn(u64, &mut Packet) -> Harm) -> Instrument {
    let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
    instrument_of(stream.into(), capacity, harm)
}

pub(super) fn instrument_of(
    traffic: Traffic,
    capacity: usize,
    harm: fn(u64, &mut Packet) -> Harm,
) -> Instrument {
    let wire = Loop {
        wire: VecDeque::new(),
        capacity,
        delivers: true,
        sent: 0,
        harm,
    };
    instrument_on(vec![Box::new(wire)], traffic)
}

pub(super) fn instrument_on(ports: Vec<Box<dyn Port>>, traffic: Traffic) -> Instrument {
    let clock = Clock::calibrate(Duration::from_millis(5));
    let specs = vec![PortSpec::parse("null:").unwrap()];
    let pool = PoolHandle::new(256, false).unwrap();
    Instrument::on(specs, ports, pool, traffic, clock)
}

pub(super) const TRIAL: Trial = Trial {
    rate_pps: 100_000.0,
    duration: Duration::from_millis(20),
};
