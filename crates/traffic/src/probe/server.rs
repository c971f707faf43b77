//! A server that sends each probe back to its source.

use super::Over;
use crate::messages::{Messages, Transport, open, widen};
use rustix::thread::set_current_timer_slack;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taut_wire::probe;

/// Longest time after which an idle server notices a stop request.
const PAUSE: Duration = Duration::from_millis(100);

/// A server whose socket is bound to an address.
#[derive(Debug)]
pub struct ProbeServer {
    carrier: Carrier,
}

#[derive(Debug)]
enum Carrier {
    Socket(UdpSocket),
    Messages(Mutex<Box<dyn Messages>>),
}

/// Counters of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Answered {
    /// Probes that were sent back.
    pub answered: u64,
    /// Datagrams that are no probes; they get no reply.
    pub malformed: u64,
    /// Replies that the kernel rejected.
    pub not_sent: u64,
    /// Packets received and sent, including repairs and feedback, if the transport counts them (the deadline
    /// transport).
    pub packets: u64,
}

fn unpoisoned(messages: &Mutex<Box<dyn Messages>>) -> MutexGuard<'_, Box<dyn Messages>> {
    messages.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProbeServer {
    /// Makes a server that receives probes at a local address.
    ///
    /// # Errors
    /// The address is in use, or not of this machine.
    pub fn bind(address: impl ToSocketAddrs) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(PAUSE))?;
        widen(&socket);
        Ok(Self {
            carrier: Carrier::Socket(socket),
        })
    }

    /// Binds to an address, for any transport.
    ///
    /// # Errors
    /// The address is in use, or not of this machine.
    pub fn bind_over(address: SocketAddr, over: &Over) -> std::io::Result<Self> {
        if over.transport == Transport::Udp {
            return Self::bind(address);
        }
        Ok(Self::by(open(over.transport, address, &over.deadline)?))
    }

    /// Makes a server that replies through another implementation of [`Messages`], such as the caller's own.
    pub fn by(messages: Box<dyn Messages>) -> Self {
        Self {
            carrier: Carrier::Messages(Mutex::new(messages)),
        }
    }

    /// Returns the address at which the server listens.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        match &self.carrier {
            Carrier::Socket(socket) => socket.local_addr(),
            Carrier::Messages(messages) => unpoisoned(messages).address(),
        }
    }

    /// Replies until `stop` is set. A reply is as long as its probe.
    pub fn run(&self, stop: &AtomicBool) -> Answered {
        match &self.carrier {
            Carrier::Socket(socket) => Self::answer_datagrams(socket, stop),
            Carrier::Messages(messages) => Self::answer_messages(&mut **unpoisoned(messages), stop),
        }
    }

    fn answer_messages(messages: &mut dyn Messages, stop: &AtomicBool) -> Answered {
        // Without this setting, sleeps end up to 50 us late.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut all = Answered::default();
        let mut payload = vec![0; super::MOST_BYTES + 1];
        while !stop.load(Ordering::Relaxed) {
            // Notices about sent messages are ignored here.
            let Ok(Some(received)) = messages.receive(&mut payload) else {
                messages.wait(PAUSE);
                continue;
            };
            let length = received.length;
            if !probe::answer(&mut payload[..length]) {
                all.malformed += 1;
            } else if messages.send_to(&payload[..length], received.from).is_ok() {
                all.answered += 1;
            } else {
                all.not_sent += 1;
            }
        }
        messages.leave();
        let counts = messages.counts();
        all.packets = counts.map_or(0, |it| it.packets_received + it.packets_sent);
        all
    }

    fn answer_datagrams(socket: &UdpSocket, stop: &AtomicBool) -> Answered {
        let mut all = Answered::default();
        let mut payload = vec![0; super::MOST_BYTES + 1];
        while !stop.load(Ordering::Relaxed) {
            let (length, client) = match socket.recv_from(&mut payload) {
                Ok(received) => received,
                // This branch includes errors that the machine of an exited client reports.
                Err(e) => {
                    if !matches!(
                        e.kind(),
                        ErrorKind::WouldBlock
                            | ErrorKind::TimedOut
                            | ErrorKind::Interrupted
                            | ErrorKind::ConnectionRefused
                    ) {
                        // The interface may be down, for example. The pause keeps the loop from spinning.
                        std::thread::sleep(PAUSE);
                    }
                    continue;
                }
            };
            all.packets += 1;
            if !probe::answer(&mut payload[..length]) {
                all.malformed += 1;
            } else if socket.send_to(&payload[..length], client).is_ok() {
                all.answered += 1;
                all.packets += 1;
            } else {
                all.not_sent += 1;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::Probe;

    #[test]
    fn only_probe_requests_get_replies_and_every_datagram_is_counted() {
        let server = ProbeServer::bind("127.0.0.1:0").unwrap();
        let to = server.address().unwrap();
        let stop = AtomicBool::new(false);
        let answered = std::thread::scope(|scope| {
            let running = scope.spawn(|| server.run(&stop));
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            let mut question = [7; 40];
            Probe {
                session: 3,
                sequence: 9,
                sent_ns: 1,
            }
            .emit(&mut question);
            let mut answer = question;
            assert!(probe::answer(&mut answer));
            // None of these gets a reply: the first three are no probes, and the last one is a reply.
            for wrong in [&question[..15], b"", &[0; 100], &answer[..]] {
                client.send_to(wrong, to).unwrap();
            }
            client.send_to(&question, to).unwrap();
            let mut got = [0; 200];
            let length = client.recv(&mut got).unwrap();
            assert_eq!(&got[..length], &answer[..]);
            stop.store(true, Ordering::Relaxed);
            running.join().unwrap()
        });
        let expected = Answered {
            answered: 1,
            malformed: 4,
            not_sent: 0,
            packets: 6,
        };
        assert_eq!(answered, expected);
    }
}
