//! The path of a batch through the data plane: headers, lookups, actions, and then the steps for only some packets,
//! such as rate limits.

use super::super::bearer::Kind;
use super::super::outcome::Outcome;
use super::super::parser::Seen;
use super::super::rules::Asked;
use super::super::slot::Slot;
use super::Plane;
use taut_function::Context;
use taut_port::{BATCH_CAPACITY, Batch, Marks};

/// The maximum number of calls of `take_changes` for an empty batch; together these calls take some microseconds.
const ROUNDS_WITHOUT_PACKETS: usize = 32;

impl Plane {
    pub(in super::super) fn process(&mut self, batch: &mut Batch, context: &Context) {
        let rounds = match batch.is_empty() {
            true => ROUNDS_WITHOUT_PACKETS,
            false => 1,
        };
        for _ in 0..rounds {
            if !self.take_changes() {
                break;
            }
        }
        if !batch.is_empty() {
            self.pass(batch, context);
            self.receiver.outcomes.publish(&self.counts);
        }
        if self.held.is_due(context.to_port) {
            self.drain(batch, context);
        }
        self.messages.release(batch);
    }

    fn pass(&mut self, batch: &mut Batch, context: &Context) {
        let len = batch.len().min(BATCH_CAPACITY);
        let mut seen = [Seen::Gone; BATCH_CAPACITY];
        let mut keys = [0; BATCH_CAPACITY];
        let mut found = [Slot::default(); BATCH_CAPACITY];
        for (i, packet) in batch.packets().iter().enumerate().take(len) {
            if batch.is_kept(i) {
                seen[i] = Seen::of(packet.bytes(), &self.own);
                keys[i] = seen[i].key();
            }
        }
        if self.table.has_rules() {
            self.ask_rules(batch, &seen[..len], &mut found[..len]);
        } else {
            self.table.look_up(&keys[..len], &mut found[..len]);
        }
        let tunnels = self.tunnels.as_ref();
        let takes_tunnels = tunnels.is_none_or(|ports| ports.contains(&context.from_port));
        // One packet of each batch updates the port and MAC addresses of its peer. Over time this covers every peer,
        // and the other packets cost nothing.
        self.batches = self.batches.wrapping_add(1);
        if takes_tunnels
            && let Some(shown) = self.batches.checked_rem(len)
            && let Seen::Tunnelled(tunnelled) = &seen[shown]
            && found[shown].key != 0
        {
            self.hear(&batch.packets()[shown], tunnelled, context);
        }
        // Separate variables stay in registers while no packet is classified.
        let (mut metered, mut used, mut held): (u64, u64, u64) = (0, 0, 0);
        for i in 0..len {
            let packet = &mut batch.packets_mut()[i];
            let outcome = match &seen[i] {
                Seen::Gone => continue,
                Seen::Settled(outcome) => *outcome,
                Seen::Tunnelled(_) if !takes_tunnels => Outcome::WrongPort,
                Seen::Tunnelled(tunnelled) => self.tunnelled(packet, tunnelled, &found[i], context),
                Seen::Plain { ip, .. } => self.plain(packet, usize::from(*ip), &found[i], context),
            };
            if matches!(
                outcome,
                Outcome::Relayed | Outcome::Encapsulated | Outcome::Decapsulated
            ) {
                self.counts[outcome as usize] += 1;
                metered |= u64::from(found[i].is_metered()) << i;
            } else if outcome == Outcome::ToldToDrop && found[i].kind() == Kind::Classify {
                let behind = self.classify(batch, i, &seen[i], &mut found[i], context);
                metered |= u64::from(behind.is_metered) << i;
                used |= u64::from(behind.is_used) << i;
                held |= u64::from(behind.is_held) << i;
            } else {
                self.left_out(batch, i, outcome, &found[i], context);
            }
        }
        if metered != 0 {
            self.police(batch, metered, &seen, &found, context.now_ticks);
        }
        if used != 0 {
            self.count_usage(batch, used, &seen, &found, context.now_ticks);
        }
        if held != 0 {
            self.take_out(batch, held);
        }
    }

    /// Looks the packets of a batch up in a `rules` table, which compares header fields.
    #[inline(never)]
    fn ask_rules(&self, batch: &Batch, seen: &[Seen], found: &mut [Slot]) {
        for ((packet, seen), found) in batch.packets().iter().zip(seen).zip(found) {
            if let Some(asked) = Asked::of(packet.bytes(), seen) {
                *found = self.table.taker(&asked);
            }
        }
    }

    /// Removes packets from the batch and frees them. Each bit of `gone` is one packet.
    #[inline(never)]
    fn take_out(&mut self, batch: &mut Batch, gone: u64) {
        let length = batch.len();
        let mut marks: [Marks; BATCH_CAPACITY] =
            std::array::from_fn(|index| match index < length {
                true => batch.marks(index),
                false => Marks::default(),
            });
        let (aside, mut index) = (&mut self.aside, 0);
        batch.take_front(length, |packet| {
            if gone >> index & 1 == 0 {
                aside.push_marked(packet, &std::mem::take(&mut marks[index]));
            }
            index += 1;
        });
        // The remaining marks belong to packets that have been moved.
        batch.clear();
        pour(aside, batch);
    }

    /// Passes released packets to the batch's egress port, after the packets of the batch. Later packets of the same
    /// rule stay in order, because they are buffered until the released packets have left.
    #[inline(never)]
    fn drain(&mut self, batch: &mut Batch, context: &Context) {
        let mut due = std::mem::take(&mut self.aside);
        let room = batch.room();
        self.held
            .take_due(context.to_port, room, |packet| due.push(packet));
        self.is_draining = true;
        self.pass(&mut due, context);
        self.is_draining = false;
        pour(&mut due, batch);
        self.aside = due;
        self.receiver.outcomes.publish(&self.counts);
    }

    /// Drops the departing packets that exceed a rate of their bearer; each bit of `metered` is one packet. The meters
    /// count only packets that would leave.
    #[inline(never)]
    fn police(
        &mut self,
        batch: &mut Batch,
        mut metered: u64,
        seen: &[Seen],
        bearers: &[Slot],
        now_ticks: u64,
    ) {
        let now = self.policing.moment(now_ticks);
        let mut keys = [0; BATCH_CAPACITY];
        let mut places = [0; BATCH_CAPACITY];
        let mut found = [Slot::default(); BATCH_CAPACITY];
        let mut count = 0;
        while metered != 0 {
            let place = metered.trailing_zeros() as usize;
            metered &= metered - 1;
            (keys[count], places[count]) = (bearers[place].key, place);
            count += 1;
        }
        self.policing.look_up(&keys[..count], &mut found[..count]);
        for (place, found) in places.into_iter().zip(&found).take(count) {
            let bearer = &bearers[place];
            let packet = &batch.packets()[place];
            let Some((bytes, left_as)) = self.user_bytes(packet, &seen[place], bearer) else {
                continue;
            };
            if !self.policing.admits(found, now, bytes) {
                self.counts[left_as as usize] -= 1;
                self.counts[Outcome::OverRate as usize] += 1;
                batch.mark_dropped(place);
            }
        }
    }
}

/// Moves all packets, with their metadata, to the end of another batch, which has space for them.
fn pour(from: &mut Batch, to: &mut Batch) {
    let length = from.len();
    let mut marks: [Marks; BATCH_CAPACITY] = std::array::from_fn(|index| match index < length {
        true => from.marks(index),
        false => Marks::default(),
    });
    let mut index = 0;
    from.take_front(length, |packet| {
        to.push_marked(packet, &std::mem::take(&mut marks[index]));
        index += 1;
    });
    from.clear();
}
