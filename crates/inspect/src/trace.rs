//! Traffic for trials and measurements, which was written for taut, and whose use no licence restricts. It contains
//! datagrams to port 53 that are no DNS, and conversations of DNS, HTTP and TLS that the inspectors parse. No rule of
//! [`crate::sample`] matches it.

use std::net::Ipv4Addr;
use taut_wire::{
    Error, EtherType, EthernetRepr, IpProtocol, Ipv4Repr, Mac, Sum, TcpFlags, TcpRepr, UdpRepr,
    Vlan,
};

/// Number of conversations of each of the three protocols in [`mixed`].
pub const CONVERSATIONS: u16 = 32;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const TCP_BYTES: usize = 20;
/// Number of bytes of a frame before the UDP payload, plus the check sequence after it.
const AROUND_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + CHECK_SEQUENCE_BYTES;
const CHECK_SEQUENCE_BYTES: usize = 4;
/// Minimum length of a frame without its check sequence.
const SHORTEST_BYTES: usize = 60;
/// Payload of a full segment, in bytes.
const SEGMENT_BYTES: usize = 1460;

/// The two endpoints of a conversation.
#[derive(Clone, Copy)]
struct Ends {
    client: (Ipv4Addr, u16),
    server: (Ipv4Addr, u16),
}

impl Ends {
    fn new(number: u16, client_port: u16, server_port: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        Self {
            client: (Ipv4Addr::new(198, 18, high, low), client_port),
            server: (Ipv4Addr::new(198, 19, high, low), server_port),
        }
    }
}

/// Returns datagrams of one flow to port 53 whose payload is a counter, in frames of the given size, including the
/// check sequence.
///
/// # Errors
/// Returns an error if the size is less than 64 or more than a frame can have.
pub fn counters(frame_bytes: usize, frames: u64) -> Result<Vec<Vec<u8>>, Error> {
    let payload_bytes = frame_bytes.saturating_sub(AROUND_BYTES);
    if payload_bytes < size_of::<u64>() {
        return Err(Error::BadLength {
            what: "frame",
            length: frame_bytes,
            min: 64,
            max: 9216,
        });
    }
    let ends = Ends::new(0, 31_238, 53);
    let each = (0..frames).map(|number| {
        let mut payload = vec![0; payload_bytes];
        payload[..size_of::<u64>()].copy_from_slice(&number.to_be_bytes());
        datagram(ends, true, &payload)
    });
    each.collect()
}

/// Returns interleaved conversations of DNS, HTTP and TLS. Each frame is as long as its content requires, up to 1,518
/// bytes. All conversations end, so the traffic may be repeated.
///
/// ```
/// let frames = taut_inspect::trace::mixed()?;
/// assert!(frames.iter().all(|frame| (60..=1514).contains(&frame.len())));
/// # Ok::<(), taut_wire::Error>(())
/// ```
///
/// # Errors
/// Returns only errors of the frame builders.
pub fn mixed() -> Result<Vec<Vec<u8>>, Error> {
    let mut conversations = Vec::new();
    for number in 0..CONVERSATIONS {
        conversations.push(dns(number)?);
        conversations.push(http(number)?);
        conversations.push(tls(number)?);
    }
    // The frames of the conversations are interleaved; the longest ones end alone.
    let longest = conversations.iter().map(Vec::len).max().unwrap_or(0);
    let mut frames = Vec::new();
    for turn in 0..longest {
        let due = conversations.iter_mut().filter_map(|it| it.get_mut(turn));
        frames.extend(due.map(std::mem::take));
    }
    Ok(frames)
}

fn dns(number: u16) -> Result<Vec<Vec<u8>>, Error> {
    let ends = Ends::new(1 + number, 40_000 + number, 53);
    let host = format!("host{number}");
    let mut query = Vec::from(number.to_be_bytes());
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in [host.as_bytes(), b"example", b"net"] {
        query.extend(with_len::<1>(label));
    }
    query.extend([0, 0, 1, 0, 1]);
    let mut answer = query.clone();
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[7] = 1;
    // The name is a pointer to the name in the question; the address is valid for a minute.
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
    Ok(vec![
        datagram(ends, true, &query)?,
        datagram(ends, false, &answer)?,
    ])
}

fn http(number: u16) -> Result<Vec<Vec<u8>>, Error> {
    let mut talk = Connection::new(Ends::new(257 + number, 41_000 + number, 80));
    talk.open()?;
    let request = format!(
        "GET /news/{number}/index.html?from=start HTTP/1.1\r\nHost: www{number}.example.net\r\nUser-Agent: reader/2.1 (X11; Linux)\r\n\
         Accept: text/html\r\nAccept-Language: en\r\nCookie: session={:08x}\r\nConnection: close\r\n\r\n",
        u32::from(number).wrapping_mul(0x9e37_79b9)
    );
    talk.send(true, request.as_bytes())?;
    let line = "<p>What is written here is of no importance, but it looks like text.</p>\n";
    let body = line.repeat(40);
    let response = format!(
        "HTTP/1.1 200 OK\r\nServer: pages/1.0\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    talk.send(false, response.as_bytes())?;
    talk.acknowledge(true)?;
    talk.close()
}

fn tls(number: u16) -> Result<Vec<Vec<u8>>, Error> {
    let mut talk = Connection::new(Ends::new(513 + number, 42_000 + number, 443));
    talk.open()?;
    let name = format!("shop{number}.example.net");
    let name = with_len::<2>(&[&[0][..], &with_len::<2>(name.as_bytes())].concat());
    let extensions = [
        &[0, 0][..],
        &with_len::<2>(&name),
        // The extension offers TLS 1.3 and TLS 1.2.
        &[0, 43, 0, 5, 4, 3, 4, 3, 3],
    ]
    .concat();
    let hello = [
        &[3, 3][..],
        &noise(number, 32),
        &with_len::<1>(&noise(number, 32)),
        &with_len::<2>(&[0x13, 1, 0x13, 2, 0xc0, 0x2f]),
        &with_len::<1>(&[0]),
        &with_len::<2>(&extensions),
    ]
    .concat();
    talk.send(
        true,
        &record(22, &[&[1][..], &with_len::<3>(&hello)].concat()),
    )?;
    let hello = [
        &[3, 3][..],
        &noise(!number, 32),
        &with_len::<1>(&noise(number, 32)),
        &[0x13, 1, 0],
        &with_len::<2>(&[0, 43, 0, 2, 3, 4]),
    ]
    .concat();
    let first = [
        record(22, &[&[2][..], &with_len::<3>(&hello)].concat()),
        record(20, &[1]),
        record(23, &noise(number, 900)),
    ]
    .concat();
    talk.send(false, &first)?;
    talk.send(true, &record(23, &noise(number, 300)))?;
    talk.send(false, &record(23, &noise(number, 4000)))?;
    talk.acknowledge(true)?;
    talk.close()
}

fn record(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &with_len::<2>(bytes)].concat()
}

/// Returns bytes after a length prefix of the given width.
fn with_len<const WIDTH: usize>(bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u32).to_be_bytes();
    [&len[len.len() - WIDTH..], bytes].concat()
}

/// Returns bytes that look encrypted.
fn noise(seed: u16, len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ u64::from(seed);
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(next).collect()
}

/// A TCP connection, with the frames that were built for it.
struct Connection {
    ends: Ends,
    /// Sequence numbers of the next bytes by direction, to the server first.
    next: [u32; 2],
    frames: Vec<Vec<u8>>,
}

impl Connection {
    fn new(ends: Ends) -> Self {
        let first = u32::from(ends.client.1) << 12;
        Self {
            ends,
            next: [first, !first],
            frames: Vec::new(),
        }
    }

    fn open(&mut self) -> Result<(), Error> {
        self.segment(true, TcpFlags::SYN, &[])?;
        self.segment(false, TcpFlags::SYN.union(TcpFlags::ACK), &[])?;
        self.acknowledge(true)
    }

    fn acknowledge(&mut self, to_server: bool) -> Result<(), Error> {
        self.segment(to_server, TcpFlags::ACK, &[])
    }

    /// Sends bytes in as many segments as necessary.
    fn send(&mut self, to_server: bool, bytes: &[u8]) -> Result<(), Error> {
        let flags = TcpFlags::ACK.union(TcpFlags::PSH);
        bytes
            .chunks(SEGMENT_BYTES)
            .try_for_each(|part| self.segment(to_server, flags, part))
    }

    fn close(mut self) -> Result<Vec<Vec<u8>>, Error> {
        let done = TcpFlags::FIN.union(TcpFlags::ACK);
        self.segment(true, done, &[])?;
        self.segment(false, done, &[])?;
        self.acknowledge(true)?;
        Ok(self.frames)
    }

    fn segment(&mut self, to_server: bool, flags: TcpFlags, payload: &[u8]) -> Result<(), Error> {
        let ends = self.ends;
        let (from, to) = if to_server { (0, 1) } else { (1, 0) };
        let header = TcpRepr {
            source_port: [ends.client.1, ends.server.1][from],
            destination_port: [ends.client.1, ends.server.1][to],
            sequence: self.next[from],
            acknowledgement: if flags.contains(TcpFlags::ACK) {
                self.next[to]
            } else {
                0
            },
            flags,
            window: 0xffff,
            urgent: 0,
            options: &[],
        };
        let len = TCP_BYTES + payload.len();
        let frame = packet(ends, to_server, IpProtocol::TCP, len, |segment, sum| {
            segment[TCP_BYTES..].copy_from_slice(payload);
            header.emit(segment)?.fill_checksum(sum);
            Ok(())
        })?;
        self.frames.push(frame);
        // SYN and FIN take a sequence number each.
        let ends = flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::FIN);
        let taken = payload.len() as u32 + u32::from(ends);
        self.next[from] = self.next[from].wrapping_add(taken);
        Ok(())
    }
}

fn datagram(ends: Ends, to_server: bool, payload: &[u8]) -> Result<Vec<u8>, Error> {
    let (from, to) = if to_server {
        (ends.client, ends.server)
    } else {
        (ends.server, ends.client)
    };
    let header = UdpRepr {
        source_port: from.1,
        destination_port: to.1,
        payload_len_bytes: payload.len(),
    };
    let len = UDP_BYTES + payload.len();
    packet(ends, to_server, IpProtocol::UDP, len, |datagram, sum| {
        let mut udp = header.emit(datagram)?;
        udp.payload_mut().copy_from_slice(payload);
        udp.fill_checksum(sum);
        Ok(())
    })
}

/// Returns a frame with `len` layer-4 bytes. `fill` writes these bytes; its second argument is the sum of the pseudo
/// header.
fn packet(
    ends: Ends,
    to_server: bool,
    protocol: IpProtocol,
    len: usize,
    fill: impl FnOnce(&mut [u8], Sum) -> Result<(), Error>,
) -> Result<Vec<u8>, Error> {
    let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
    let addresses = [ends.client.0, ends.server.0];
    let (from, to) = if to_server { (0, 1) } else { (1, 0) };
    let mut frame = vec![0; (ETHERNET_BYTES + IPV4_BYTES + len).max(SHORTEST_BYTES)];
    let ethernet = EthernetRepr {
        destination: macs[to],
        source: macs[from],
        vlan: Vlan::Untagged,
        ethertype: EtherType::IPV4,
    };
    let ip = Ipv4Repr {
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol,
        source: addresses[from],
        destination: addresses[to],
        options: &[],
        payload_len_bytes: len,
    };
    let mut ethernet = ethernet.emit(&mut frame)?;
    let mut ip = ip.emit(ethernet.payload_mut())?;
    let sum = ip.pseudo_header(len as u16);
    fill(ip.payload_mut(), sum)?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dns::{Name, query};
    use crate::tls::{ClientHello, Progress, client_hello};
    use etherparse::{SlicedPacket, TransportSlice};

    #[test]
    fn etherparse_parses_every_frame_and_confirms_its_checksums() {
        let frames = [mixed().unwrap(), counters(64, 3).unwrap()].concat();
        assert!(frames.len() > 800, "{}", frames.len());
        for frame in frames {
            let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else {
                panic!("{sliced:?}")
            };
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum);
            match sliced.transport.unwrap() {
                TransportSlice::Tcp(tcp) => {
                    let sum = tcp.calc_checksum_ipv4(header.source, header.destination);
                    assert_eq!(sum.unwrap(), tcp.checksum());
                }
                TransportSlice::Udp(udp) => {
                    let made = udp.to_header();
                    let sum = made.calc_checksum_ipv4(&header, udp.payload());
                    assert_eq!(sum.unwrap(), made.checksum);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn dns_tls_and_http_of_the_trace_are_parsed() {
        let mut name = Name::default();
        let asked = dns(7).unwrap();
        query(&asked[0][42..], &mut name).unwrap();
        assert_eq!(&name[..], b"host7.example.net");
        assert!(query(&asked[1][42..], &mut name).unwrap().is_response);
        let hello = &tls(7).unwrap()[3];
        let mut read = ClientHello::default();
        assert_eq!(client_hello(&hello[54..], &mut read), Ok(Progress::Done));
        assert_eq!(&read.sni[..], b"shop7.example.net");
        let request = &http(7).unwrap()[3];
        assert!(request[54..].starts_with(b"GET /news/7/"));
    }

    #[test]
    fn synthetic_frames_with_counters_have_the_requested_size() {
        for size in [64, 512, 1518] {
            let frames = counters(size, 2).unwrap();
            assert_eq!(frames[1].len() + CHECK_SEQUENCE_BYTES, size);
            assert_eq!((frames[0][49], frames[1][49]), (0, 1));
        }
        assert!(counters(40, 1).is_err() && counters(100_000, 1).is_err());
    }
}
