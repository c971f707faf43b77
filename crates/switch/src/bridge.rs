//! The learning bridge, which chooses the egress port of a frame.

use super::address_table::{Learned, is_reserved};
use taut_function::Context;
use taut_wire::Ethernet;

/// The learning bridge: its address table, and its counts of packets (forwarded, flooded, and others).
#[derive(Debug)]
pub(super) struct Bridge {
    pub learned: Learned,
    pub switched: u64,
    pub flooded: u64,
    pub same_port: u64,
    pub reserved: u64,
    pub malformed: u64,
}

/// The bridge's decision about the egress ports of a packet.
pub(super) enum Bridged {
    To(u8),
    ToAllOthers,
    Nowhere,
}

impl Bridge {
    pub fn new(addresses: usize) -> Self {
        Self {
            learned: Learned::new(addresses),
            switched: 0,
            flooded: 0,
            same_port: 0,
            reserved: 0,
            malformed: 0,
        }
    }

    /// Learns the port of the frame's source address, and returns the decision about the frame's egress ports.
    pub fn pass(&mut self, frame: &[u8], context: &Context) -> Bridged {
        let from = context.from_port as u8;
        let Ok(ethernet) = Ethernet::new(frame) else {
            self.malformed += 1;
            return Bridged::Nowhere;
        };
        let (source, destination) = (ethernet.source(), ethernet.destination());
        if !source.is_multicast() {
            self.learned.learn(source, from, context.now_ticks);
        }
        if is_reserved(destination) {
            self.reserved += 1;
            return Bridged::Nowhere;
        }
        let known = match destination.is_multicast() {
            true => None,
            false => self.learned.port_of(destination, context.now_ticks),
        };
        match known {
            Some(port) if port == from => {
                self.same_port += 1;
                Bridged::Nowhere
            }
            Some(port) => {
                self.switched += 1;
                Bridged::To(port)
            }
            None if context.ports < 2 => {
                self.same_port += 1;
                Bridged::Nowhere
            }
            None => {
                self.flooded += 1;
                Bridged::ToAllOthers
            }
        }
    }
}
