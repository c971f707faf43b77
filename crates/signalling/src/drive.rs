//! Runs a load over a UDP socket.

use super::account::{Account, Measured};
use super::load::Load;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_sys::{DATAGRAMS_AT_A_TIME, Datagrams};

/// The size of the socket's receive buffer, bytes.
const RECEIVE_BYTES: usize = 4 << 20;
/// The maximum length of a received message, bytes.
const MOST_BYTES: usize = 2048;
/// The maximum wait for a datagram, after which the loop checks whether it has to end.
const LOOK: Duration = Duration::from_millis(10);
/// The number of times that the first request is sent, one second apart.
const GREETINGS: u32 = 10;

/// The reason why a load cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The UDP socket cannot be opened.
    #[error("cannot listen at {0}: {1}")]
    Bind(SocketAddr, io::Error),
    /// The peer does not reply to the first request.
    #[error("no answer from {0}: is it running, and is this address one of its peers?")]
    NoAnswer(SocketAddr),
}

/// The results of both phases of a load.
#[derive(Debug)]
pub struct Driven {
    /// The results of the first phase, in which all users attach.
    pub filled: Measured,
    /// The results of the second phase, in which procedures are drawn from the mix.
    pub measured: Measured,
}

/// The socket of a load, the address of the peer, and the buffered messages.
struct Line {
    socket: UdpSocket,
    to: SocketAddr,
    begun: Instant,
    inbox: Datagrams<MOST_BYTES>,
    outbox: Datagrams<MOST_BYTES>,
}

/// Runs a load from the address `from` against `to`: attaches all users, calls `filled`, draws procedures for
/// `seconds`, and ends the sessions unless they are kept. Ends early once `stop` is set.
///
/// # Errors
/// Returns an error if the address is in use, or the peer does not reply.
pub fn drive(
    load: &mut Load,
    (from, to): (SocketAddr, SocketAddr),
    seconds: f64,
    is_kept: bool,
    stop: &AtomicBool,
    filled: impl FnOnce(&Load),
) -> Result<Driven, DriveError> {
    let bind = || {
        let socket = UdpSocket::bind(from)?;
        socket.set_nonblocking(true)?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES);
        }
        Ok(socket)
    };
    let socket = bind().map_err(|e| DriveError::Bind(from, e))?;
    let mut line = Line {
        socket,
        to,
        begun: Instant::now(),
        inbox: Datagrams::default(),
        outbox: Datagrams::default(),
    };
    if let Some(greeting) = load.greeting(true) {
        line.greet(&greeting, stop)?;
    }
    let begun = Instant::now();
    line.run(load, |load| load.is_full() || stop.load(Ordering::Relaxed));
    let attached = measured(load, &line, begun);
    filled(load);
    let begun = Instant::now();
    let length = Duration::from_secs_f64(seconds.max(0.0));
    let is_over = |_: &Load| begun.elapsed() >= length || stop.load(Ordering::Relaxed);
    load.next_phase(line.now());
    line.run(load, is_over);
    let mixed = measured(load, &line, begun);
    if !is_kept {
        line.finish(load, stop);
    }
    Ok(Driven {
        filled: attached,
        measured: mixed,
    })
}

/// Ends a phase and returns its results.
fn measured(load: &mut Load, line: &Line, begun: Instant) -> Measured {
    let account: Account = load.next_phase(line.now());
    account.measured(begun.elapsed().as_secs_f64(), load.sessions())
}

impl Line {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Sends the first request repeatedly until the peer replies.
    fn greet(&mut self, greeting: &[u8], stop: &AtomicBool) -> Result<(), DriveError> {
        for _ in 0..GREETINGS {
            let _ = self.socket.send_to(greeting, self.to);
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_secs(1) && !stop.load(Ordering::Relaxed) {
                self.wait(LOOK);
                let mut answer = [0; MOST_BYTES];
                if self.socket.recv_from(&mut answer).is_ok() {
                    return Ok(());
                }
            }
        }
        Err(DriveError::NoAnswer(self.to))
    }

    /// Sends and receives messages until `is_over` returns true.
    fn run(&mut self, load: &mut Load, is_over: impl Fn(&Load) -> bool) {
        let mut message = Vec::new();
        while !is_over(load) {
            let received = self.receive(load);
            let now = self.now();
            let mut sent = 0;
            while !self.outbox.is_full() && load.next(now, &mut message) {
                self.add(&message);
                sent += 1;
            }
            if !self.outbox.is_empty() {
                self.outbox.send(&self.socket);
            }
            if received == 0 && sent == 0 {
                let due = load.next_due().unwrap_or(u64::MAX);
                let wait = Duration::from_nanos(due.saturating_sub(self.now()));
                self.wait(wait.min(LOOK));
            }
        }
    }

    /// Processes arrived datagrams, up to a limit; returns their number.
    fn receive(&mut self, load: &mut Load) -> usize {
        let count = self.inbox.receive(&self.socket, DATAGRAMS_AT_A_TIME);
        let (count, now) = (count.unwrap_or(0), self.now());
        for index in 0..count {
            let Some((bytes, from)) = self.inbox.get(index) else {
                continue;
            };
            if from.ip() != self.to.ip() {
                continue;
            }
            if let Some(response) = load.heard(bytes, now) {
                let _ = self.socket.send_to(&response, from);
            }
        }
        count
    }

    fn add(&mut self, message: &[u8]) {
        self.outbox.add(self.to, |bytes| {
            bytes.get_mut(..message.len())?.copy_from_slice(message);
            Some(message.len())
        });
    }

    /// Waits until a datagram arrives, for at most the time `most`.
    fn wait(&self, most: Duration) {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let most = Timespec::try_from(most).ok();
        // An interruption by a signal only shortens the wait.
        let _ = poll(&mut polled, most.as_ref());
    }

    /// Ends all sessions: by the release of the PFCP association, or one by one with GTP-C.
    fn finish(&mut self, load: &mut Load, stop: &AtomicBool) {
        let limit = Instant::now() + Duration::from_secs(60);
        if let Some(goodbye) = load.greeting(false) {
            // All pending requests were sent before this one, so none of them creates a session after it.
            let _ = self.socket.send_to(&goodbye, self.to);
            self.wait(Duration::from_secs(1));
            return;
        }
        load.wind_down();
        self.run(load, |load| {
            let is_over = load.sessions() == 0 && load.is_quiet();
            is_over || Instant::now() >= limit || stop.load(Ordering::Relaxed)
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Core, Mix, Plan, Protocol};
    use super::*;

    #[test]
    fn the_error_names_a_peer_that_does_not_reply() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = silent.local_addr().unwrap();
        let mut load = Load::new(Plan {
            protocol: Protocol::Pfcp(Core::Open5gs),
            sessions: 1,
            mix: Mix::default(),
            rate: 0,
            window: 1,
            response_ns: 1,
            repeats: 0,
            own: [127, 0, 0, 1].into(),
            base_station: [192, 0, 2, 7].into(),
            seed: 1,
        });
        // The caller has requested the end already.
        let stop = AtomicBool::new(true);
        let from = "127.0.0.1:0".parse().unwrap();
        let refused = drive(&mut load, (from, to), 1.0, true, &stop, |_| {});
        assert!(refused.unwrap_err().to_string().contains(&to.to_string()));
    }
}
