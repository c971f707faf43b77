//! Sends probes back to where they came from.

use super::Over;
use crate::messages::{Messages, Transport, open, widen};
use rustix::thread::set_current_timer_slack;
use serde::Serialize;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taut_wire::probe;

/// Time after which a server that hears nothing sees at the latest that it is to stop.
const PAUSE: Duration = Duration::from_millis(100);

/// A server bound to its address.
#[derive(Debug)]
pub struct ProbeServer {
    carrier: Carrier,
}

#[derive(Debug)]
enum Carrier {
    Socket(UdpSocket),
    Messages(Mutex<Box<dyn Messages>>),
}

/// Counts of what a server has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// Probes sent back.
    pub answered: u64,
    /// Datagrams that are no questions, which get no answer.
    pub malformed: u64,
    /// Answers that the kernel did not take.
    pub not_sent: u64,
    /// Packets that came and that left, where the transport counts them: the deadline transport has repairs and feedback beside probes.
    pub packets: u64,
}

fn unpoisoned(messages: &Mutex<Box<dyn Messages>>) -> MutexGuard<'_, Box<dyn Messages>> {
    messages.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProbeServer {
    /// Binds to an address.
    ///
    /// # Errors
    /// It is taken, or not of this machine.
    pub fn bind(address: impl ToSocketAddrs) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(PAUSE))?;
        widen(&socket);
        Ok(Self {
            carrier: Carrier::Socket(socket),
        })
    }

    /// Binds to an address, for whatever carries messages.
    ///
    /// # Errors
    /// It is taken, or not of this machine.
    pub fn bind_over(address: SocketAddr, over: &Over) -> std::io::Result<Self> {
        if over.transport == Transport::Udp {
            return Self::bind(address);
        }
        Ok(Self::by(open(over.transport, address, &over.deadline)?))
    }

    /// Answers what comes by something else that carries messages, such as a program of its own.
    pub fn by(messages: Box<dyn Messages>) -> Self {
        Self {
            carrier: Carrier::Messages(Mutex::new(messages)),
        }
    }

    /// Returns the address at which the server listens.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        match &self.carrier {
            Carrier::Socket(socket) => socket.local_addr(),
            Carrier::Messages(messages) => unpoisoned(messages).address(),
        }
    }

    /// Answers until `stop` is set. An answer is as long as its question.
    pub fn run(&self, stop: &AtomicBool) -> Answered {
        match &self.carrier {
            Carrier::Socket(socket) => Self::answer_datagrams(socket, stop),
            Carrier::Messages(messages) => Self::answer_messages(&mut **unpoisoned(messages), stop),
        }
    }

    fn answer_messages(messages: &mut dyn Messages, stop: &AtomicBool) -> Answered {
        // Sleeps otherwise end up to 50 us late.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut all = Answered::default();
        let mut payload = vec![0; super::MOST_BYTES + 1];
        while !stop.load(Ordering::Relaxed) {
            // What is known of messages sent before concerns nobody here.
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
                // Also what a client that has gone away lets be known.
                Err(e) => {
                    if !matches!(
                        e.kind(),
                        ErrorKind::WouldBlock
                            | ErrorKind::TimedOut
                            | ErrorKind::Interrupted
                            | ErrorKind::ConnectionRefused
                    ) {
                        // The interface is down, for example: it must not spin.
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
    fn only_questions_are_answered_by_as_many_bytes_and_all_is_counted() {
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
            // Only the last one of these is one.
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
