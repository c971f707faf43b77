//! The transport of messages as UDP datagrams.

use super::socket::{is_for_now, udp_socket};
use super::transport::{Messages, Received};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;
use taut_sys::Alarm;

#[derive(Debug)]
pub(super) struct DatagramMessages {
    socket: UdpSocket,
    alarm: Alarm,
}

impl DatagramMessages {
    pub(super) fn open(bind: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            socket: udp_socket(bind)?,
            alarm: Alarm::default(),
        })
    }
}

impl Messages for DatagramMessages {
    fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn send_to(&mut self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        self.socket.send_to(message, to).map(drop)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>> {
        match self.socket.recv_from(message) {
            Ok((length, from)) => Ok(Some(Received {
                length,
                from,
                stamp: None,
            })),
            Err(e) if is_for_now(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn wait(&mut self, at_most: Duration) {
        self.alarm.clear();
        self.alarm.watch(self.socket.as_fd());
        self.alarm.wait(at_most);
    }
}
