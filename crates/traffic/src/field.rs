//! Header fields that differ from packet to packet: ranges of addresses, ports, tags, tunnels.

use crate::zipf::Zipf;
use std::net::IpAddr;
use taut_wire::{Ethernet, IpProtocol, Ipv4, Ipv6, Mac, Sum, gtpu, ipv6};

/// Name of a header field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldName {
    /// Source MAC address.
    SrcMac,
    /// Destination MAC address.
    DstMac,
    /// VLAN identifier.
    Vlan,
    /// Source IP address; in a tunnel, that of the user packet.
    SrcIp,
    /// Destination IP address; in a tunnel, that of the user packet.
    DstIp,
    /// Time to live or hop limit; in a tunnel, that of the user packet.
    Ttl,
    /// Source port of UDP or TCP.
    SrcPort,
    /// Destination port of UDP or TCP.
    DstPort,
    /// Tunnel endpoint identifier of GTP-U.
    Teid,
}

/// The order in which a field takes its values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    /// Values in ascending order; after the last value, the first follows.
    Increment,
    /// Independent and uniformly distributed values.
    Random,
    /// Independent values; the k-th value has a probability proportional to k^-exponent.
    Zipf(f64),
}

/// The values of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Values {
    /// The first value, as an integer: its bytes in big-endian order.
    pub low: u128,
    /// Number of successive values, the first of which is `low`.
    pub count: u64,
    /// Order in which successive packets take the values.
    pub order: Order,
}

/// Reason why the text of a field's values cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} \"{text}\": {reason}")]
pub struct FieldError {
    field: &'static str,
    text: String,
    reason: String,
}

impl FieldName {
    /// Returns the key of the field in traffic files.
    pub fn key(self) -> &'static str {
        match self {
            Self::SrcMac => "src_mac",
            Self::DstMac => "dst_mac",
            Self::Vlan => "vlan",
            Self::SrcIp => "src_ip",
            Self::DstIp => "dst_ip",
            Self::Ttl => "ttl",
            Self::SrcPort => "src_port",
            Self::DstPort => "dst_port",
            Self::Teid => "teid",
        }
    }

    /// Returns the smallest and the largest valid value of the field, as integers.
    fn limits(self) -> (u128, u128) {
        match self {
            Self::SrcMac | Self::DstMac => (0, (1 << 48) - 1),
            Self::Vlan => (0, 4094),
            Self::SrcIp | Self::DstIp => (0, u128::MAX),
            Self::Ttl => (1, 255),
            Self::SrcPort | Self::DstPort => (0, 0xffff),
            Self::Teid => (0, 0xffff_ffff),
        }
    }

    /// Parses one value, and returns it as an integer; for an IP address, also returns the address. None for an invalid
    /// value.
    fn number(self, text: &str) -> Option<(u128, Option<IpAddr>)> {
        match self {
            Self::SrcMac | Self::DstMac => {
                let mac: Mac = text.parse().ok()?;
                let [a, b, c, d, e, f] = mac.0;
                let number = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
                Some((u128::from(number), None))
            }
            Self::SrcIp | Self::DstIp => match text.parse().ok()? {
                ip @ IpAddr::V4(v4) => Some((u128::from(v4.to_bits()), Some(ip))),
                ip @ IpAddr::V6(v6) => Some((v6.to_bits(), Some(ip))),
            },
            _ => {
                let number = text.parse::<u128>().ok()?;
                let (low, high) = self.limits();
                (low..=high).contains(&number).then_some((number, None))
            }
        }
    }

    /// Parses `VALUE`, or `FIRST-LAST` followed by an order: `increment` (the default), `random`, `zipf(EXPONENT)`.
    ///
    /// # Errors
    /// The error names the fault and the valid values.
    pub fn values(self, text: &str) -> Result<Values, FieldError> {
        let error = |reason: String| FieldError {
            field: self.key(),
            text: text.to_string(),
            reason,
        };
        let (range, order) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let order = match order.trim() {
            "" | "increment" => Order::Increment,
            "random" => Order::Random,
            other => {
                let exponent = other
                    .strip_prefix("zipf(")
                    .and_then(|o| o.strip_suffix(')'));
                let exponent = exponent.and_then(|e| e.trim().parse::<f64>().ok());
                match exponent {
                    Some(e) if (0.01..=10.0).contains(&e) => Order::Zipf(e),
                    _ => {
                        return Err(error(format!(
                            "\"{other}\": expected increment, random or zipf(EXPONENT), 0.01 to 10"
                        )));
                    }
                }
            }
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let wrong = |value: &str| {
            let (low, high) = self.limits();
            error(match self {
                Self::SrcMac | Self::DstMac => {
                    format!("\"{value}\": expected a MAC address such as 02:00:00:00:00:01")
                }
                Self::SrcIp | Self::DstIp => {
                    format!("\"{value}\": expected an IPv4 or IPv6 address")
                }
                _ => format!("\"{value}\": expected a number from {low} to {high}"),
            })
        };
        let (low, low_ip) = self.number(first).ok_or_else(|| wrong(first))?;
        let (high, high_ip) = self.number(last).ok_or_else(|| wrong(last))?;
        if low_ip.map(|ip| ip.is_ipv4()) != high_ip.map(|ip| ip.is_ipv4()) {
            return Err(error(
                "the ends of the range are of different IP versions".to_string(),
            ));
        }
        let Some(span) = high.checked_sub(low) else {
            return Err(error(format!("{first} is greater than {last}")));
        };
        let count = u64::try_from(span).ok().and_then(|s| s.checked_add(1));
        let count = count.ok_or_else(|| error("more than 2^64 - 1 values".to_string()))?;
        Ok(Values { low, count, order })
    }
}

/// Layout of a field: its offset in a frame, and the checksums that cover it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FieldLayout {
    offset: usize,
    width: usize,
    in_ip_sum: bool,
    in_transport_sum: bool,
}

/// Offsets of a frame's headers.
struct Headers {
    ip: usize,
    ipv6: bool,
    protocol: IpProtocol,
    transport: usize,
    /// Offset of the GTP-U header, where there is one.
    gtpu: Option<usize>,
}

fn headers(frame: &[u8]) -> Option<Headers> {
    let ethernet = Ethernet::new(frame).ok()?;
    let start = ethernet.header_len_bytes();
    let (protocol, outer_len, ipv6) = ip_header(ethernet.payload())?;
    let outer = Headers {
        ip: start,
        ipv6,
        protocol,
        transport: start + outer_len,
        gtpu: None,
    };
    let datagram = frame.get(outer.transport..)?;
    if protocol != IpProtocol::UDP || datagram.get(2..4)? != gtpu::UDP_PORT.to_be_bytes() {
        return Some(outer);
    }
    let Ok(tunnel) = taut_wire::Gtpu::new(datagram.get(8..)?) else {
        return Some(outer);
    };
    let gtpu = outer.transport + 8;
    let ip = gtpu + tunnel.header_len_bytes();
    let (protocol, len, ipv6) = ip_header(tunnel.payload())?;
    Some(Headers {
        ip,
        ipv6,
        protocol,
        transport: ip + len,
        gtpu: Some(gtpu),
    })
}

/// Returns the protocol after the IP header, the header's length in bytes, and true for IPv6; none for an invalid
/// packet.
fn ip_header(packet: &[u8]) -> Option<(IpProtocol, usize, bool)> {
    if packet.first()? >> 4 == 4 {
        let ip = Ipv4::new(packet).ok()?;
        return Some((ip.protocol(), ip.header_len_bytes(), false));
    }
    let ip = Ipv6::new(packet).ok()?;
    Some((ip.next_header(), ipv6::HEADER_LEN_BYTES, true))
}

fn place(frame: &[u8], name: FieldName) -> Option<FieldLayout> {
    let headers = headers(frame)?;
    let tcp_or_udp = [IpProtocol::TCP, IpProtocol::UDP].contains(&headers.protocol);
    let plain = |offset, width| FieldLayout {
        offset,
        width,
        in_ip_sum: false,
        in_transport_sum: false,
    };
    let address = |v4: usize, v6: usize| FieldLayout {
        in_ip_sum: !headers.ipv6,
        in_transport_sum: tcp_or_udp,
        ..plain(
            headers.ip + if headers.ipv6 { v6 } else { v4 },
            if headers.ipv6 { 16 } else { 4 },
        )
    };
    Some(match name {
        FieldName::DstMac => plain(0, 6),
        FieldName::SrcMac => plain(6, 6),
        FieldName::Vlan if frame.get(12..14)? == [0x81, 0x00] => plain(14, 2),
        FieldName::SrcIp => address(12, 8),
        FieldName::DstIp => address(16, 24),
        FieldName::Ttl => FieldLayout {
            in_ip_sum: !headers.ipv6,
            ..plain(headers.ip + if headers.ipv6 { 7 } else { 8 }, 1)
        },
        FieldName::SrcPort | FieldName::DstPort if tcp_or_udp => FieldLayout {
            in_transport_sum: true,
            ..plain(
                headers.transport + if name == FieldName::SrcPort { 0 } else { 2 },
                2,
            )
        },
        FieldName::Teid => plain(headers.gtpu? + 4, 4),
        FieldName::Vlan | FieldName::SrcPort | FieldName::DstPort => return None,
    })
}

/// Returns the offsets of two checksums in the innermost packet: that of the IPv4 header (none for IPv6), and that of
/// UDP or TCP.
pub(crate) fn checksum_offsets(frame: &[u8]) -> Option<(Option<usize>, usize)> {
    let headers = headers(frame)?;
    let ip = (!headers.ipv6).then_some(headers.ip + 10);
    let tcp = headers.protocol == IpProtocol::TCP;
    Some((ip, headers.transport + if tcp { 16 } else { 6 }))
}

/// Writer of one header field: it writes the next value into each packet.
#[derive(Debug, Clone)]
pub(crate) struct FieldWriter {
    place: FieldLayout,
    values: Values,
    next: u64,
    /// Distance between two successive values of this writer in ascending order, at most the number of values.
    step: u64,
    random: fastrand::Rng,
    zipf: Option<Zipf>,
}

/// Contribution of the values written into one packet to the packet's checksums.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Added {
    pub(crate) ip: Sum,
    pub(crate) transport: Sum,
}

impl FieldWriter {
    /// Makes a writer of the field; none if frames of the given kind have no such field.
    pub(crate) fn new(frame: &[u8], name: FieldName, values: Values, seed: u64) -> Option<Self> {
        let zipf = match values.order {
            Order::Zipf(exponent) => Some(Zipf::new(values.count, exponent)),
            _ => None,
        };
        Some(Self {
            place: place(frame, name)?,
            values,
            next: 0,
            step: 1,
            random: fastrand::Rng::with_seed(seed),
            zipf,
        })
    }

    /// Restricts the writer to the share of worker `number` (from 0) of `of` workers: every `of`-th value in ascending
    /// order, beginning with value `number`. Random values differ from worker to worker.
    pub(crate) fn share(&mut self, number: u64, of: u64) {
        self.next = number % self.values.count;
        self.step = of % self.values.count;
        let seed = self.random.get_seed().wrapping_add(number << 32);
        self.random = fastrand::Rng::with_seed(seed);
    }

    /// Sets the field to 0 in a template frame.
    pub(crate) fn blank(&self, frame: &mut [u8]) {
        self.put(frame, 0);
    }

    pub(crate) fn in_ip_sum(&self) -> bool {
        self.place.in_ip_sum
    }

    pub(crate) fn in_transport_sum(&self) -> bool {
        self.place.in_transport_sum
    }

    #[inline(always)]
    fn put(&self, frame: &mut [u8], value: u128) {
        let bytes = value.to_be_bytes();
        let field = &mut frame[self.place.offset..self.place.offset + self.place.width];
        match field {
            [a, b] => [*a, *b] = [bytes[14], bytes[15]],
            [a, b, c, d] => [*a, *b, *c, *d] = [bytes[12], bytes[13], bytes[14], bytes[15]],
            _ => field.copy_from_slice(&bytes[16 - field.len()..]),
        }
    }

    /// Writes the next value into a frame in which this field is 0.
    #[inline(always)]
    pub(crate) fn write(&mut self, frame: &mut [u8], added: &mut Added) {
        let index = match self.values.order {
            Order::Increment => {
                let index = self.next;
                let left = self.values.count - index;
                self.next = if self.step >= left {
                    self.step - left
                } else {
                    index + self.step
                };
                index
            }
            Order::Random => self.random.u64(0..self.values.count),
            Order::Zipf(_) => self.zipf.as_ref().map_or(0, |z| z.draw(&mut self.random)),
        };
        let value = self.values.low + u128::from(index);
        self.put(frame, value);
        if self.place.in_ip_sum || self.place.in_transport_sum {
            let sum = match self.place.width {
                // The time to live is the high byte of its word.
                1 => Sum::ZERO.add_u16((value as u16) << 8),
                16 => Sum::ZERO
                    .add_u64((value >> 64) as u64)
                    .add_u64(value as u64),
                _ => Sum::ZERO.add_u64(value as u64),
            };
            if self.place.in_ip_sum {
                added.ip = added.ip.combine(sum);
            }
            if self.place.in_transport_sum {
                added.transport = added.transport.combine(sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn value_ranges_are_parsed_with_their_order() {
        let values = FieldName::DstIp.values("10.0.0.1-10.0.1.0 random").unwrap();
        assert_eq!((values.low, values.count), (0x0a00_0001, 256));
        assert_eq!(values.order, Order::Random);
        let values = FieldName::SrcPort.values("1024").unwrap();
        assert_eq!(
            (values.low, values.count, values.order),
            (1024, 1, Order::Increment)
        );
        let values = FieldName::Teid.values("1-1000000 zipf(1.1)").unwrap();
        assert_eq!(values.order, Order::Zipf(1.1));
    }

    #[test]
    fn invalid_field_values_are_refused_with_the_valid_form() {
        for (field, text, part) in [
            (FieldName::SrcPort, "70000", "0 to 65535"),
            (FieldName::Vlan, "4095", "0 to 4094"),
            (FieldName::DstIp, "10.0.0.300", "IPv4 or IPv6"),
            (FieldName::DstIp, "10.0.0.9-10.0.0.1", "greater than"),
            (
                FieldName::DstIp,
                "10.0.0.1-2001:2::1",
                "different IP versions",
            ),
            (FieldName::DstIp, "::-ffff::", "more than 2^64"),
            (FieldName::SrcMac, "1-2", "MAC address"),
            (FieldName::Ttl, "0", "1 to 255"),
            (FieldName::Teid, "1-9 often", "increment, random or zipf"),
        ] {
            let message = field.values(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
