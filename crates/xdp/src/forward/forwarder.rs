//! Forwarder in the kernel: all directions together, started, watched, counted.

use super::direction::Direction;
use super::refused::Refused;
use super::{Entrance, InterfaceCounters, KernelCounters, KernelProgram};
use crate::Mode;
use crate::program::{takes_redirected, wait_for_replaced};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use taut_sys::Error;
use taut_sys::interface::{self, Interface};

/// Where frames of a direction may leave.
struct Exit {
    /// Number of the entrance whose interface it is.
    to: usize,
    /// Interface as the direction's map has it.
    interface: Option<u32>,
}

/// One interface, and the direction that begins at it.
struct Side {
    entrance: Entrance,
    direction: Direction,
    /// The kernel's number for the interface; None while it is gone.
    index: Option<u32>,
    /// That of the entrance's, or one for each entrance if the program has the choice.
    exits: Vec<Exit>,
    /// Reason why the program runs where it does, if there is more to say.
    note: &'static str,
}

/// Forwards between interfaces inside the kernel. Dropping it takes the programs off the interfaces.
pub struct KernelForwarder {
    sides: Vec<Side>,
    /// Whether programs choose where frames leave.
    sends: bool,
    /// Asks about interfaces in the network namespace it was started in.
    lookup: OwnedFd,
    refused: Result<Refused, String>,
}

impl std::fmt::Debug for KernelForwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.details()).finish()
    }
}

impl KernelForwarder {
    /// Attaches a program to the interface of each entrance, no two of which are the same. The `program` says what happens to
    /// frames on their way.
    ///
    /// # Errors
    /// For an interface that is not there, or has an XDP program already; for what the machine or the driver lacks.
    ///
    /// # Panics
    /// When frames are to leave through an entrance that there is not.
    pub fn start(entrances: &[Entrance], program: KernelProgram<'_>) -> Result<Self, Error> {
        let what = "forwarding in the kernel";
        let lookup = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|e| Error::system(what, e))?;
        let sends = matches!(program, KernelProgram::Upcall(programs, _) if programs.sends());
        let mut sides = Vec::new();
        for (number, entrance) in entrances.iter().enumerate() {
            let found = Interface::find(&lookup, &entrance.interface)
                .map_err(|e| interface::cannot_find(&opening(entrance), &entrance.interface, e))?;
            let way = (number, entrance.to);
            let exits = match sends {
                true => (0..entrances.len()).collect(),
                false => vec![entrance.to],
            };
            let exit = |to| Exit {
                to,
                interface: None,
            };
            sides.push(Side {
                direction: Direction::new(&opening(entrance), program, way)?,
                entrance: entrance.clone(),
                index: Some(found.index),
                exits: exits.into_iter().map(exit).collect(),
                note: "",
            });
        }
        let refused = Refused::start(&lookup).map_err(|e| e.to_string());
        let mut forwarder = Self {
            sides,
            sends,
            lookup,
            refused,
        };
        for number in 0..forwarder.sides.len() {
            forwarder.join(number)?;
            forwarder.attach(number)?;
        }
        Ok(forwarder)
    }

    /// Puts other programs in the place of the present ones, in all directions or in none. Each frame meets the old program
    /// or the new one; none is lost, and counters go on. Returns when nobody runs in an old one any more.
    ///
    /// # Errors
    /// When a program cannot be loaded or put in place; for programs that hand frames up, whose maps others write.
    pub fn replace(&mut self, program: KernelProgram<'_>) -> Result<(), Error> {
        if matches!(program, KernelProgram::Upcall(..)) {
            let text = "programs that hand frames up are not put in the place of others";
            return Err(Error::system(
                "forwarding in the kernel",
                io::Error::other(text),
            ));
        }
        let next = self.sides.iter().enumerate().map(|(number, side)| {
            let way = (number, side.entrance.to);
            side.direction
                .load_next(&opening(&side.entrance), program, way)
        });
        let mut next = next.collect::<Result<Vec<_>, _>>()?;
        for number in 0..next.len() {
            let swapped = self.sides[number].direction.swap(&mut next[number]);
            if let Err(e) = swapped {
                for (side, before) in self.sides.iter_mut().zip(&mut next).take(number) {
                    // It ran a moment ago.
                    let _ = side.direction.swap(before);
                }
                return Err(Error::system(opening(&self.sides[number].entrance), e));
            }
        }
        wait_for_replaced();
        Ok(())
    }

    /// Returns what has passed so far, all directions together.
    pub fn counters(&self) -> KernelCounters {
        let mut sum = KernelCounters::default();
        for side in &self.sides {
            side.direction.add_to(&mut sum);
        }
        let late = self.refused.as_ref().map_or(0, Refused::frames);
        let late = late.min(sum.tx_packets);
        sum.tx_packets -= late;
        sum.refused += late;
        sum
    }

    /// Returns what has passed each interface so far, in the order of the entrances; what a driver did not take is counted
    /// as sent.
    pub fn interfaces(&self) -> Vec<InterfaceCounters> {
        let mut passed = vec![InterfaceCounters::default(); self.sides.len()];
        for (number, side) in self.sides.iter().enumerate() {
            let mut counted = KernelCounters::default();
            side.direction.add_to(&mut counted);
            passed[number].rx_packets += counted.rx_packets;
            passed[number].rx_bytes += counted.rx_bytes;
            if self.sends {
                for (exit, passed) in passed.iter_mut().enumerate() {
                    let (packets, bytes) = side.direction.left_through(exit);
                    passed.tx_packets += packets;
                    passed.tx_bytes += bytes;
                }
                continue;
            }
            let to = side.entrance.to;
            passed[to].tx_packets += counted.tx_packets;
            passed[to].tx_bytes += counted.tx_bytes;
        }
        passed
    }

    /// Takes the programs off the interfaces; what has passed in all.
    pub fn end(mut self) -> KernelCounters {
        for side in &mut self.sides {
            side.direction.detach();
        }
        self.counters()
    }

    /// Whether frames can pass each interface, or why not; one that was deleted and made again under its name is taken up
    /// again. Makes system calls: ask about once a second.
    pub fn links(&mut self) -> Vec<Result<(), String>> {
        let mut links = Vec::new();
        let mut changed = Vec::new();
        for side in &mut self.sides {
            let name = side.entrance.interface.as_str();
            let (index, link) = match Interface::find(&self.lookup, name) {
                Ok(found) => (Some(found.index), found.passes(name)),
                Err(error) => (None, Err(interface::lost(name, &error))),
            };
            changed.push(index != side.index || side.direction.mode().is_none());
            if index != side.index {
                side.direction.detach();
                side.index = index;
            }
            links.push(link);
        }
        for number in 0..self.sides.len() {
            let back = changed[number] && self.sides[number].index.is_some();
            let done = self
                .join(number)
                .and_then(|()| if back { self.attach(number) } else { Ok(()) });
            if let Err(error) = done {
                links[number] = Err(error.to_string());
            }
        }
        links
    }

    /// Describes what became of each direction, for people to read.
    pub fn details(&self) -> Vec<String> {
        let mut lines: Vec<_> = self
            .sides
            .iter()
            .map(|side| {
                let to = match self.sends {
                    true => "every port",
                    false => &self.sides[side.entrance.to].entrance.interface,
                };
                let from = &side.entrance.interface;
                let mode = side
                    .direction
                    .mode()
                    .map_or_else(|| "not attached".to_string(), |mode| format!("{mode} XDP"));
                format!("{from} to {to}: {mode}{}", side.note)
            })
            .collect();
        if let Err(why) = &self.refused {
            lines.push(format!(
                "frames that a driver refuses are counted as sent: {why}"
            ));
        }
        lines
    }

    /// Names the outgoing interfaces of a direction to its program, as far as they have changed.
    fn join(&mut self, number: usize) -> Result<(), Error> {
        for exit in 0..self.sides[number].exits.len() {
            let side = &self.sides[number];
            let Exit { to, interface } = side.exits[exit];
            let now = self.sides[to].index;
            // The kernel empties the map when the interface goes.
            if now == interface && now.is_some() {
                continue;
            }
            if let Some(now) = now {
                let failed = |e| Error::system(opening(&side.entrance), e);
                side.direction.leave_through(exit, now).map_err(failed)?;
            }
            self.sides[number].exits[exit].interface = now;
            self.watch(number)?;
        }
        Ok(())
    }

    fn attach(&mut self, number: usize) -> Result<(), Error> {
        let Some(index) = self.sides[number].index else {
            return Ok(());
        };
        let mut exits = self.sides[number].exits.iter();
        let sends = exits.all(|exit| {
            let out = self.sides[exit.to].index;
            out.is_none_or(|out| takes_redirected(out) != Some(false))
        });
        let side = &mut self.sides[number];
        let (modes, note) = match (sends, side.entrance.modes) {
            (true, modes) => (modes, ""),
            // A native program's frames would all be dropped there.
            (false, [Mode::Native, Mode::Generic]) => (
                &[Mode::Generic][..],
                ", as the other interface's driver takes no frames from native XDP now (on veth: its far \
                 end needs `ethtool -K INTERFACE gro on`, or XDP)",
            ),
            (false, modes @ [Mode::Native]) => (
                modes,
                "; the other interface's driver takes no frames from it now (on veth: its far end needs \
                 `ethtool -K INTERFACE gro on`, or XDP)",
            ),
            (false, modes) => (modes, ""),
        };
        side.note = note;
        let (what, name) = (opening(&side.entrance), &side.entrance.interface);
        side.direction.attach(&what, name, index, modes)?;
        self.watch(number)
    }

    /// Counts what is refused on the way from and to the present interfaces.
    fn watch(&mut self, number: usize) -> Result<(), Error> {
        let side = &self.sides[number];
        if let (Ok(refused), Some(from)) = (&mut self.refused, side.index) {
            for to in side.exits.iter().filter_map(|exit| exit.interface) {
                refused
                    .watch(from, to, side.direction.map_id)
                    .map_err(|e| Error::system(opening(&side.entrance), e))?;
            }
        }
        Ok(())
    }
}

fn opening(entrance: &Entrance) -> String {
    format!("forwarding from {} in the kernel", entrance.interface)
}
