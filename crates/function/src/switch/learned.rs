//! SWITCH: a learning bridge over all ports of the chain. (IEEE 802.1D-2004, sections 7.7 to 7.9 and 7.12.6.)
//!
//! A frame teaches through which port its source is reached; it leaves through the port of its destination, or through all
//! others while that is not known.

use crate::mix::mix;
use crate::{Class, Context, Entry, Function, KernelVersion, SettingsError, settings};
use serde::Deserialize;
use std::time::Duration;
use taut_port::{Batch, PortError};
use taut_settings::duration;
use taut_sys::Clock;
use taut_wire::{Ethernet, Mac};

pub(crate) const ENTRY: Entry = Entry {
    name: "switch",
    summary: "sends each frame to the port of its destination address, which it learns; to all others while it is not known",
    class: Class::Basic,
    ports: None,
    build: |table| Ok(Box::new(Switch::new(settings(table)?)?) as Box<dyn Function>),
    in_kernel: KernelVersion::No("it has no version there"),
};

/// Addresses that share a hash are looked for in so many places.
const WAYS: usize = 4;
/// IEEE 802.1D-2004, table 7-5.
const DEFAULT_AGE: Duration = Duration::from_secs(300);
const MOST_ADDRESSES: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default = "default_addresses")]
    addresses: usize,
    age: Option<String>,
}

fn default_addresses() -> usize {
    4096
}

/// An address, and through which port it was last seen when.
#[derive(Debug, Clone, Copy)]
struct Known {
    mac: Mac,
    /// Number of the port; more than there can be for an empty place.
    port: u8,
    seen_ticks: u64,
}

const NOBODY: Known = Known {
    mac: Mac([0; 6]),
    port: u8::MAX,
    seen_ticks: 0,
};

struct Switch {
    age: Duration,
    age_ticks: u64,
    /// Sets of [`WAYS`] places; their number is a power of two.
    table: Vec<[Known; WAYS]>,
    switched: u64,
    flooded: u64,
    crowded: u64,
    same_port: u64,
    reserved: u64,
    malformed: u64,
}

impl Switch {
    fn new(settings: Settings) -> Result<Self, SettingsError> {
        let Settings { addresses, age } = settings;
        if !(WAYS..=MOST_ADDRESSES).contains(&addresses) {
            return Err(SettingsError(format!(
                "addresses: want {WAYS} to {MOST_ADDRESSES}, not {addresses}"
            )));
        }
        let age = match age {
            None => DEFAULT_AGE,
            Some(text) => duration(&text)
                .filter(|age| !age.is_zero())
                .ok_or_else(|| {
                    SettingsError(format!("age: want a time such as 300s, not \"{text}\""))
                })?,
        };
        Ok(Self {
            age,
            age_ticks: 0,
            table: vec![[NOBODY; WAYS]; addresses.div_ceil(WAYS).next_power_of_two()],
            switched: 0,
            flooded: 0,
            crowded: 0,
            same_port: 0,
            reserved: 0,
            malformed: 0,
        })
    }

    fn set_of(&self, mac: Mac) -> usize {
        let [a, b, c, d, e, f] = mac.0;
        let word = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        mix(0, word) as usize & (self.table.len() - 1)
    }

    /// Puts down where an address is: in its own place, an empty or old one, or that of the one not seen for longest.
    fn learn(&mut self, mac: Mac, port: u8, now_ticks: u64) {
        let set = self.set_of(mac);
        let places = &mut self.table[set];
        let own = places.iter().position(|known| known.mac == mac);
        let place = own.or_else(|| {
            let free = |known: &Known| match known.port {
                u8::MAX => 0,
                _ => known.seen_ticks,
            };
            (0..WAYS).min_by_key(|place| free(&places[*place]))
        });
        if let Some(place) = place {
            places[place] = Known {
                mac,
                port,
                seen_ticks: now_ticks,
            };
        }
    }

    /// The port through which an address was seen lately.
    fn port_of(&self, mac: Mac, now_ticks: u64) -> Option<u8> {
        let known = self.table[self.set_of(mac)];
        let known = known.iter().find(|known| known.mac == mac)?;
        let is_young = now_ticks.wrapping_sub(known.seen_ticks) < self.age_ticks;
        (known.port != u8::MAX && is_young).then_some(known.port)
    }
}

/// Addresses that bridges keep to themselves: spanning tree, pause, link discovery. (IEEE 802.1D-2004, table 7-10.)
fn is_reserved(mac: Mac) -> bool {
    matches!(mac.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
}

impl Function for Switch {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let from = context.from_port as u8;
        for index in 0..batch.len() {
            if !batch.is_kept(index) {
                continue;
            }
            let frame = batch.packets()[index].bytes();
            let Ok(ethernet) = Ethernet::new(frame) else {
                batch.mark_dropped(index);
                self.malformed += 1;
                continue;
            };
            let (source, destination) = (ethernet.source(), ethernet.destination());
            if !source.is_multicast() {
                self.learn(source, from, context.now_ticks);
            }
            if is_reserved(destination) {
                batch.mark_dropped(index);
                self.reserved += 1;
                continue;
            }
            let known = match destination.is_multicast() {
                true => None,
                false => self.port_of(destination, context.now_ticks),
            };
            match known {
                Some(port) if port == from => {
                    batch.mark_dropped(index);
                    self.same_port += 1;
                }
                Some(port) => {
                    batch.send_to(index, port);
                    self.switched += 1;
                }
                None => {
                    let mut others = (0..context.ports as u8).filter(|port| *port != from);
                    let Some(first) = others.next() else {
                        batch.mark_dropped(index);
                        self.same_port += 1;
                        continue;
                    };
                    batch.send_to(index, first);
                    for port in others {
                        self.crowded += u64::from(!batch.copy_to(index, port));
                    }
                    self.flooded += 1;
                }
            }
        }
    }

    fn sends(&self) -> bool {
        true
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let clock = Clock::calibrate(Duration::from_millis(2));
        self.age_ticks = clock.to_ticks(self.age.as_nanos() as f64) as u64;
        Ok(())
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("sent to one port", self.switched),
            ("sent to all other ports", self.flooded),
            (
                "copies not made: too many in a burst, beside the above",
                self.crowded,
            ),
            ("dropped: it came from there", self.same_port),
            ("dropped: reserved for bridges", self.reserved),
            ("dropped: malformed", self.malformed),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;
    use taut_wire::UdpFlow;

    fn mac(number: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, number])
    }

    fn switch(settings: &str) -> Switch {
        let mut switch =
            Switch::new(settings.parse::<toml::Table>().unwrap().try_into().unwrap()).unwrap();
        switch.prepare().unwrap();
        switch
    }

    /// Returns where a frame goes that comes in through `from`; none if it is dropped.
    fn sent(
        switch: &mut Switch,
        (source, destination): (Mac, Mac),
        from: usize,
        now_ticks: u64,
    ) -> Option<(Option<u8>, Vec<u8>)> {
        let mut frame = UdpFlow::default().frame(64).unwrap();
        let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
        ethernet.set_source(source);
        ethernet.set_destination(destination);
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(&frame);
        let context = Context {
            now_ticks,
            from_port: from,
            to_port: from ^ 1,
            ports: 4,
        };
        switch.process(&mut batch, &context);
        if !batch.is_kept(0) {
            return None;
        }
        let mut found = None;
        batch.scatter(|_, to, _, copies| {
            found = Some((to, copies.iter().map(|(_, to)| *to).collect()));
        });
        found
    }

    #[test]
    fn an_address_is_flooded_to_until_it_was_seen_and_moves_with_its_frames() {
        let switch = &mut switch("");
        assert_eq!(
            sent(switch, (mac(1), mac(2)), 0, 1),
            Some((Some(1), vec![2, 3]))
        );
        assert_eq!(
            sent(switch, (mac(2), mac(1)), 3, 2),
            Some((Some(0), vec![]))
        );
        assert_eq!(
            sent(switch, (mac(1), mac(2)), 0, 3),
            Some((Some(3), vec![]))
        );
        // It has been plugged in elsewhere.
        assert_eq!(
            sent(switch, (mac(2), mac(1)), 2, 4),
            Some((Some(0), vec![]))
        );
        assert_eq!(
            sent(switch, (mac(1), mac(2)), 0, 5),
            Some((Some(2), vec![]))
        );
        // Both on one side: it has arrived already.
        assert_eq!(sent(switch, (mac(3), mac(1)), 0, 6), None);
        let broadcast = Mac([255; 6]);
        assert_eq!(
            sent(switch, (mac(1), broadcast), 1, 7),
            Some((Some(0), vec![2, 3]))
        );
        let spanning_tree = Mac([1, 0x80, 0xc2, 0, 0, 0]);
        assert_eq!(sent(switch, (mac(1), spanning_tree), 1, 8), None);
        let counts: Vec<u64> = switch.outcomes().iter().map(|outcome| outcome.1).collect();
        assert_eq!(counts, [4, 2, 0, 1, 1, 0]);
    }

    #[test]
    fn an_address_is_forgotten_when_it_is_silent() {
        let switch = &mut switch("age = \"1s\"");
        let second = switch.age_ticks;
        sent(switch, (mac(1), mac(2)), 0, 0);
        assert_eq!(
            sent(switch, (mac(2), mac(1)), 1, second - 1),
            Some((Some(0), vec![]))
        );
        assert_eq!(
            sent(switch, (mac(2), mac(1)), 1, second),
            Some((Some(0), vec![2, 3]))
        );
    }

    #[test]
    fn a_flood_of_addresses_pushes_out_the_oldest_and_nothing_grows() {
        let switch = &mut switch("addresses = 4");
        for number in 0..200 {
            sent(switch, (mac(number), mac(255)), 0, u64::from(number));
        }
        assert_eq!(switch.table.len(), 1);
        assert!((196..200).all(|n| switch.port_of(mac(n), 200).is_some()));
        assert!((0..196).all(|n| switch.port_of(mac(n), 200).is_none()));
    }

    #[test]
    fn settings_that_cannot_be_say_why() {
        let refused = |text: &str| {
            let settings = text.parse::<toml::Table>().unwrap().try_into().unwrap();
            Switch::new(settings).err().unwrap().0
        };
        assert!(refused("addresses = 0").starts_with("addresses: want 4 to 1048576"));
        assert!(refused("age = \"soon\"").starts_with("age: "));
    }
}
