//! The forwarder in the kernel: starts, watches and counts all directions.

use super::direction::Direction;
use super::refusals::Refused;
use super::{Entrance, InterfaceCounters, KernelCounters, KernelProgram};
use crate::Mode;
use crate::program::{takes_redirected, wait_for_replaced};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use taut_sys::Error;
use taut_sys::interface::{self, Interface};

/// An egress interface through which frames of a direction may leave.
struct Exit {
    /// Index of the [`Entrance`] with the same interface as this egress interface.
    to: usize,
    /// Kernel index of the egress interface that the direction's map contains; none while the map contains none.
    interface: Option<u32>,
}

/// One ingress interface, and the direction of the frames that enter through the interface.
struct Side {
    entrance: Entrance,
    direction: Direction,
    /// The kernel's index of the interface; none while the interface does not exist.
    index: Option<u32>,
    /// The only egress interface ([`Entrance::to`]), or one for each entrance if the XDP program chooses the egress
    /// interface.
    exits: Vec<Exit>,
    /// A note for display after the mode, if native mode is configured but the egress interface's driver takes no
    /// frames from native XDP; otherwise empty.
    note: &'static str,
}

/// Forwards between interfaces inside the kernel. Dropping it detaches the XDP programs.
pub struct KernelForwarder {
    sides: Vec<Side>,
    /// True if programs choose the egress interface of each frame; false if [`Entrance::to`] determines it.
    sends: bool,
    /// Socket for queries about interfaces in the network namespace in which the forwarder started.
    lookup: OwnedFd,
    refused: Result<Refused, String>,
}

impl std::fmt::Debug for KernelForwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.details()).finish()
    }
}

impl KernelForwarder {
    /// Attaches a program to the interface of each entrance; the interfaces must differ. The `program` determines the
    /// processing of frames.
    ///
    /// # Errors
    /// An interface does not exist, or has an XDP program already; the machine or the driver lacks a requirement.
    ///
    /// # Panics
    /// An entrance refers to an entrance that does not exist.
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

    /// Replaces the current programs, in all directions or in none. Each frame is processed by the old program or the
    /// new one; none is lost, and counters continue. Returns when no old program is running any more.
    ///
    /// # Errors
    /// A program cannot be loaded or attached, or `program` passes frames up. Programs that pass frames up cannot
    /// replace others, because other code writes their maps.
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
                    // The old program was running before, so this should not fail.
                    let _ = side.direction.swap(before);
                }
                return Err(Error::system(opening(&self.sides[number].entrance), e));
            }
        }
        wait_for_replaced();
        Ok(())
    }

    /// Returns the counters, summed over all directions.
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

    /// Returns the counters of each interface, in the order of the entrances; frames that a driver refused count as
    /// sent.
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

    /// Detaches the XDP programs; returns the final counters.
    pub fn end(mut self) -> KernelCounters {
        for side in &mut self.sides {
            side.direction.detach();
        }
        self.counters()
    }

    /// Returns for each interface whether frames can pass it, or the reason why not. An interface that was deleted and
    /// created again under its name is attached again. The check makes system calls: one call per second is enough.
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

    /// Returns lines of text for display: one for each direction (interfaces and mode), and one more if refused frames
    /// cannot be counted.
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

    /// Writes the current indices of a direction's egress interfaces to the map of the direction's program.
    fn join(&mut self, number: usize) -> Result<(), Error> {
        for exit in 0..self.sides[number].exits.len() {
            let side = &self.sides[number];
            let Exit { to, interface } = side.exits[exit];
            let now = self.sides[to].index;
            // The kernel clears the map entry when the interface is deleted.
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
            // The driver of the egress interface would drop all frames of a native program.
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

    /// Starts to count the frames that the kernel refuses to pass from the current ingress interface of a direction to
    /// its egress interfaces.
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
