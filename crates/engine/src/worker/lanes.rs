//! Packets to and from other threads: packets that belong to another worker of the chain, and frames of the slow path.

use super::{Egress, Worker};
use crate::CountersView;
use crate::handoff::{From, Handoff};
use crate::slow::{Made, SlowPath};
use taut_function::Context;
use taut_port::{BATCH_CAPACITY, Batch, Direction, Pairs};

/// The number of iterations with packets between two checks of the slow path for frames.
const BETWEEN_LOOKS: u64 = 8;

impl Worker {
    /// Processes packets of other workers, and frames of the slow path, if there are any. Returns true if there were
    /// any, or if the iteration already had packets.
    #[inline(always)]
    pub(super) fn serve_lanes(
        &mut self,
        mut had_packets: bool,
        now_ticks: u64,
        batch: &mut Batch,
        punted: &mut Batch,
        own: &mut CountersView,
    ) -> bool {
        if self.lanes.handoff.as_mut().is_some_and(Handoff::has_come) {
            self.take_over(now_ticks, batch, punted, own);
            had_packets = true;
        }
        // Check rarely while packets arrive: the check costs as much as a few packets, and frames of the slow path are
        // not urgent.
        let may_look = !had_packets || own.rounds.is_multiple_of(BETWEEN_LOOKS);
        if may_look && self.lanes.slow.as_mut().is_some_and(SlowPath::has_made) {
            self.send_made(now_ticks, batch, punted, own);
            had_packets = true;
        }
        had_packets
    }

    /// Hands packets off to the workers that own them.
    #[inline(never)]
    pub(super) fn hand_over(
        &mut self,
        batch: &mut Batch,
        context: &Context,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        if let Some(knows) = self.knows_homes
            && let Some(handoff) = &mut self.lanes.handoff
        {
            let from = From::Port(context.from_port);
            handoff.send(&*self.functions[knows], batch, context, from, own);
            batch.settle(punted);
        }
    }

    /// Processes packets handed off by other workers as if this worker had received them.
    #[inline(never)]
    fn take_over(
        &mut self,
        now_ticks: u64,
        batch: &mut Batch,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        let Some(mut handoff) = self.lanes.handoff.take() else {
            return;
        };
        handoff.receive(batch, |from, batch| {
            let from_port = match from {
                From::Port(port) => port,
                From::SlowPath(made) => return self.go_on(made, now_ticks, batch, punted, own),
            };
            let context = Context {
                now_ticks,
                from_port,
                to_port: self.ways[from_port].to,
                ports: self.ports.len(),
            };
            if self.classes.is_some() {
                return self.process_classes(batch, &mut [], &context, true, punted, own);
            }
            self.process(batch, &mut [], &context);
            self.send(&context, batch, true, punted, own);
        });
        self.lanes.handoff = Some(handoff);
    }

    /// Passes punted packets to the slow path.
    #[inline(never)]
    pub(super) fn punt(&mut self, context: &Context, punted: &mut Batch, own: &mut CountersView) {
        match &mut self.lanes.slow {
            Some(slow) => slow.punt(context.from_port, context.now_ticks, punted, own),
            None => {
                own.dropped_punted += punted.len() as u64;
                punted.clear();
            }
        }
    }

    /// Sends frames that the slow path has made or released.
    #[inline(never)]
    fn send_made(
        &mut self,
        now_ticks: u64,
        batch: &mut Batch,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        let Some(slow) = &mut self.lanes.slow else {
            return;
        };
        own.from_slow_path += slow.receive() as u64;
        while let Some(made) = self.lanes.slow.as_mut().and_then(|it| it.next_made(batch)) {
            self.hand_over_made(made, now_ticks, batch, punted, own);
            self.go_on(made, now_ticks, batch, punted, own);
        }
    }

    /// Returns the context with which functions process a frame from the slow path, as if it had been received; None if
    /// one of its ports does not exist.
    fn context_of(&self, made: Made, now_ticks: u64) -> Option<Context> {
        let ports = self.ports.len();
        let partner = Pairs::of(ports).partner(made.way.to_port);
        let from_port = made.way.from_port.unwrap_or(partner);
        let to_port = self.ways.get(from_port)?.to;
        (made.way.to_port < ports).then_some(Context {
            now_ticks,
            from_port,
            to_port,
            ports,
        })
    }

    /// Hands frames of the slow path off to the workers that own them, if a function that these frames have not passed
    /// yet assigns owners. The worker whose slow path resolved the next hop need not be the frame's owner.
    fn hand_over_made(
        &mut self,
        made: Made,
        now_ticks: u64,
        batch: &mut Batch,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        let (Some(knows), Some(place), Some(context)) = (
            self.knows_homes,
            self.numbers.place(made.function),
            self.context_of(made, now_ticks),
        ) else {
            return;
        };
        let is_behind = match Direction::from_port(context.from_port) {
            Direction::Out => knows > place,
            Direction::Back => knows < place,
        };
        if let Some(handoff) = self.lanes.handoff.as_mut().filter(|_| is_behind) {
            let (function, from) = (&*self.functions[knows], From::SlowPath(made));
            handoff.send(function, batch, &context, from, own);
            batch.settle(punted);
        }
    }

    /// Passes frames of the slow path to the functions after the one that made or released them, and sends them.
    fn go_on(
        &mut self,
        made: Made,
        now_ticks: u64,
        batch: &mut Batch,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        let context = self.context_of(made, now_ticks);
        let (Some(context), Some(place)) = (context, self.numbers.place(made.function)) else {
            // A port of the frames does not exist, or their function was replaced. In the second case it is unknown
            // which functions the frames have passed.
            match context {
                None => own.dropped_no_port += batch.len() as u64,
                Some(_) => own.dropped_punted += batch.len() as u64,
            }
            batch.clear();
            return;
        };
        let to = made.way.to_port;
        if to != context.to_port {
            (0..batch.len()).for_each(|index| batch.send_to(index, to as u8));
        }
        if self.holds_packets {
            batch.set_limit(BATCH_CAPACITY);
        }
        self.process_behind(place, made.way.lacks_addresses, batch, &context);
        self.settle(&context, batch, punted, own);
        // Frames of the slow path have no ingress port at which they could wait, so they are not patient.
        let way = Egress {
            to: context.to_port,
            patient: false,
            open: true,
        };
        self.send_apart(way, batch, true, made.way.mtu, own);
        if self.holds_packets {
            batch.set_limit(self.burst);
        }
    }

    /// Passes packets to the functions after the one at `place`, in their direction. If the packets lack MAC addresses,
    /// they first pass the earlier functions that set addresses.
    fn process_behind(
        &mut self,
        place: usize,
        lacks_addresses: bool,
        batch: &mut Batch,
        context: &Context,
    ) {
        let (count, mut is_behind) = (self.functions.len(), false);
        let direction = Direction::from_port(context.from_port);
        for at in (0..count).map(|step| direction.place(step, count)) {
            let classes = self.classes.as_ref();
            if classes.is_some_and(|it| !it.are_together(at, place)) {
                continue;
            }
            let function = &mut self.functions[at];
            let sets_addresses = self.needs[at].sets_addresses;
            if is_behind || (lacks_addresses && at != place && sets_addresses) {
                batch.set_stage(self.numbers.all()[at]);
                function.process(batch, context);
            }
            is_behind |= at == place;
        }
    }
}
