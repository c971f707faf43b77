//! The supervision of tunnel peers by echo requests (3GPP TS 29.281 section 7.2.1). A request is sent at an interval. A
//! request without a response is repeated after T3. A peer is lost after N3 requests without a response.

use super::super::Control;
use super::settings::Echo;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The time between two checks for due echo requests to all tunnel peers.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Peer {
    /// The number of one path to the peer, on which echo requests are sent.
    path: u16,
    /// The number of echo requests since the peer's last response.
    asked: u32,
    due: Instant,
    is_lost: bool,
}

/// A change of a tunnel peer's state, from lost to responding or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Became {
    Lost(IpAddr),
    /// The peer responds again.
    Found(IpAddr),
}

#[derive(Debug, Default)]
pub(super) struct Echoes {
    peers: BTreeMap<IpAddr, Peer>,
    next_look: Option<Instant>,
    sequence: u16,
}

impl Echoes {
    /// Records an echo response of a peer. Returns `Found` if the peer had counted as lost.
    pub fn answered(&mut self, remote: IpAddr, now: Instant, echo: &Echo) -> Option<Became> {
        let peer = self.peers.get_mut(&remote)?;
        let was_lost = std::mem::take(&mut peer.is_lost);
        (peer.asked, peer.due) = (0, now + echo.interval);
        was_lost.then_some(Became::Found(remote))
    }

    /// Sends the echo requests that are due; returns the peers that are now lost.
    pub fn look(&mut self, now: Instant, echo: &Echo, control: &mut Control) -> Vec<Became> {
        if self.next_look.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next_look = Some(now + LOOK);
        // An address to which no tunnel leads is no longer a peer.
        let paths: BTreeMap<IpAddr, u16> = control
            .paths()
            .map(|(number, path)| (path.remote, number))
            .collect();
        self.peers.retain(|remote, _| paths.contains_key(remote));
        let (mut lost, mut asked) = (Vec::new(), Vec::new());
        for (remote, path) in paths {
            let peer = self.peers.entry(remote).or_insert(Peer {
                path,
                asked: 0,
                due: now + echo.interval,
                is_lost: false,
            });
            peer.path = path;
            if now < peer.due {
                continue;
            }
            if peer.asked >= echo.requests {
                if !peer.is_lost {
                    peer.is_lost = true;
                    lost.push(Became::Lost(remote));
                }
                (peer.asked, peer.due) = (0, now + echo.interval);
                continue;
            }
            peer.asked += 1;
            peer.due = now + echo.time;
            asked.push(peer.path);
        }
        for path in asked {
            self.sequence = self.sequence.wrapping_add(1);
            control.ask(path, self.sequence);
        }
        lost
    }

    /// Returns the number of tunnel peers that do not respond now.
    pub fn lost(&self) -> usize {
        self.peers.values().filter(|peer| peer.is_lost).count()
    }
}
