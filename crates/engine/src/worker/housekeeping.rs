//! The periodic tasks of a worker, ten times a second: publishes counters, checks links, and ends the worker if no work
//! is left.

use super::{End, Worker};
use crate::CountersView;
use crate::slow::SlowPath;
use taut_function::Function;
use taut_port::{Link, PortCounters, Supply};

impl Worker {
    /// Returns the reason why the worker ends, if it has no work left.
    #[cold]
    pub(super) fn end(&mut self) -> Option<End> {
        if let Some(broken) = self.broken() {
            // Packets received before the failure can still be sent.
            let under_way = self.ways.iter().any(|way| {
                let (outbox, to) = (&self.outboxes[way.to], &mut self.ports[way.to]);
                let open = way.patient && way.open;
                open && !outbox.is_empty() && !matches!(to.supply(), Supply::Broken(_))
            });
            return (!under_way).then_some(broken);
        }
        let mut any_ended = false;
        for (from, way) in self.ways.iter().enumerate() {
            let supply = self.ports[from].supply();
            any_ended |= supply == Supply::Ended;
            let nothing_comes = supply != Supply::Open && self.outboxes[way.to].is_empty();
            if !nothing_comes && self.ports[way.to].takes() {
                return None;
            }
        }
        any_ended.then_some(End::Done)
    }

    pub(super) fn broken(&mut self) -> Option<End> {
        self.ports.iter_mut().enumerate().find_map(|(index, port)| {
            let Supply::Broken(why) = port.supply() else {
                return None;
            };
            Some(End::Broken(index, why))
        })
    }

    /// Publishes the counters and checks the links, ten times a second.
    #[cold]
    pub(super) fn look_around(&mut self, own: &mut CountersView, links: &mut [Option<Link>]) {
        self.publish(own);
        self.tell_counts(own);
        for (index, (port, known)) in self.ports.iter_mut().zip(links).enumerate() {
            let link = port.link();
            for way in self.ways.iter_mut().filter(|way| way.to == index) {
                way.open = link.is_up();
            }
            if known.as_ref() != Some(&link) {
                (self.on_link_change)(index, &link);
                tell_functions(&mut self.functions, index, &link);
                *known = Some(link);
            }
        }
    }

    /// Passes this worker's counts to the functions that request them.
    pub(super) fn tell_counts(&mut self, own: &CountersView) {
        for at in 0..self.functions.len() {
            let wanted = &self.needs[at].counts;
            if wanted.is_empty() {
                continue;
            }
            let count = |name: &String| {
                let of_functions = self.functions.iter().filter_map(|it| it.count_of(name));
                own.of_name(name)
                    .into_iter()
                    .chain(of_functions)
                    .reduce(|sum, it| sum + it)
            };
            let counts: Vec<_> = wanted.iter().map(count).collect();
            self.functions[at].hear_counts(&counts);
        }
    }

    /// Passes the current counts and link states to new functions, which have not received any yet.
    #[cold]
    pub(super) fn tell_new_functions(&mut self, own: &CountersView, links: &[Option<Link>]) {
        self.tell_counts(own);
        for (port, link) in links.iter().enumerate() {
            if let Some(link) = link {
                tell_functions(&mut self.functions, port, link);
            }
        }
    }

    fn publish(&mut self, own: &mut CountersView) {
        own.asleep_ticks = self.idle.asleep_ticks;
        own.punted_wait_ticks = self.lanes.slow.as_ref().map_or(0, SlowPath::waited_ticks);
        let mut sum = PortCounters::default();
        let of = self.ports.len();
        let outboxes = self.outboxes.iter();
        (own.dropped_queue_full, own.dropped_codel) = (0, 0);
        for (number, (port, outbox)) in self.ports.iter_mut().zip(outboxes).enumerate() {
            let counted = PortCounters {
                tx_full: outbox.full(),
                ..port.counters()
            };
            self.counters.publish_port(number, of, &counted);
            for (queue, counted) in outbox.queue_counters().enumerate() {
                self.counters.publish_queue(number, queue, &counted);
                own.dropped_queue_full += counted.dropped_full;
                own.dropped_codel += counted.dropped_codel;
            }
            sum = sum + counted;
        }
        own.dropped_tx_full = sum.tx_full;
        own.rx_packets = sum.rx_packets;
        own.rx_bytes = sum.rx_bytes;
        own.tx_packets = sum.tx_packets;
        own.tx_bytes = sum.tx_bytes;
        own.dropped_rx_overrun = sum.rx_overrun;
        own.dropped_malformed = sum.rx_malformed;
        own.dropped_too_long = sum.rx_too_long + sum.tx_too_long;
        own.dropped_tx_failed = sum.tx_failed;
        own.sleeps = self.idle.sleeps;
        self.interrupted.adapt(own);
        self.counters.publish(own);
        self.counters.publish_outcomes(&self.functions);
    }
}

fn tell_functions(functions: &mut [Box<dyn Function>], port: usize, link: &Link) {
    for function in functions {
        function.link_changed(port, link.is_up());
    }
}
