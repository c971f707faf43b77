//! The queues of the function's own packets, such as repair packets, that wait for a batch.

use super::header::{Header, Kind, LEN_BYTES};
use std::collections::VecDeque;
use taut_code::Combination;
use taut_function::datagram::Datagram;
use taut_port::{Batch, Packet, PoolHandle};
use taut_wire::{IpProtocol, Ipv4, Ipv6, Udp};

pub(super) const MOST_WAITING: usize = 512;

/// The function's own packets: their pool, and those that wait for a batch to their port.
pub(super) struct Own {
    pub pool: PoolHandle,
    /// The waiting packets, by egress port.
    pub waiting: Vec<VecDeque<Packet>>,
}

impl Own {
    /// Queues a packet. Returns false if the queue of the port has reached its limit.
    pub fn put(&mut self, port: usize, packet: Packet) -> bool {
        let waiting = &mut self.waiting[port];
        let fits = waiting.len() < MOST_WAITING;
        if fits {
            waiting.push_back(packet);
        }
        fits
    }

    /// Adds packets for `port` to the batch until the batch is full.
    pub fn release(&mut self, port: usize, batch: &mut Batch) {
        let fits = batch.room().min(self.waiting[port].len());
        for packet in self.waiting[port].drain(..fits) {
            batch.push(packet);
        }
    }

    /// Sends a repair packet with the addresses of `like`. Returns false if there is no space.
    pub fn send_repair(
        &mut self,
        port: usize,
        like: &[u8],
        datagram: &Datagram,
        session: u32,
        repair: &Combination<'_>,
    ) -> bool {
        let Combination {
            first,
            coefficients,
            sum,
        } = repair;
        let keep = datagram.udp + 8;
        let length = keep + LEN_BYTES + coefficients.len() + sum.len();
        if length > self.pool.room() {
            return false;
        }
        let Some(mut packet) = self.pool.take(length as u16) else {
            return false;
        };
        let header = Header {
            kind: Kind::Repair(coefficients.len() as u8),
            session,
            number: *first,
        };
        let frame = packet.bytes_mut();
        frame[..keep].copy_from_slice(&like[..keep]);
        let (front, rest) = frame[keep..].split_at_mut(LEN_BYTES);
        front.copy_from_slice(&header.bytes());
        let (front, rest) = rest.split_at_mut(coefficients.len());
        front.copy_from_slice(coefficients);
        rest.copy_from_slice(sum);
        complete(frame, datagram).is_ok() && self.put(port, packet)
    }
}

/// Sets lengths and checksums of a datagram that ends at the end of the frame.
pub(super) fn complete(frame: &mut [u8], datagram: &Datagram) -> Result<(), taut_wire::Error> {
    let udp_len = datagram.ends_with(frame).length();
    let at = datagram.udp - datagram.ip;
    let bytes = &mut frame[datagram.ip..];
    let pseudo_header = if datagram.is_v4 {
        let mut ip = Ipv4::new(&mut *bytes)?;
        ip.fill_checksum();
        ip.pseudo_header(udp_len)
    } else {
        Ipv6::new(&*bytes)?.pseudo_header(IpProtocol::UDP, udp_len.into())
    };
    Udp::new(&mut bytes[at..])?.fill_checksum(pseudo_header);
    Ok(())
}
