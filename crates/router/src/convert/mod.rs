//! Converts routing tables of other programs to lines that the router reads: table snapshots of MRT dumps (RFC 6396),
//! and the output of `birdc show route` and `vtysh -c 'show ip route'`.
//!
//! The input is read one record or line at a time, because a full table of the Internet has a million routes.

mod daemon_output;
mod mrt;

use super::prefix::Prefix;
use std::collections::HashMap;
use std::io::{self, BufRead};
use std::net::IpAddr;

/// The limit on the length of an input line, bytes.
const LONGEST_LINE: u64 = 1 << 16;
/// The first bytes of compressed files, and the command that decompresses them.
const COMPRESSED: [(&[u8], &str); 4] = [
    (b"BZh", "bunzip2"),
    (b"\x1f\x8b", "gunzip"),
    (b"\xfd7zXZ", "unxz"),
    (b"\x28\xb5\x2f\xfd", "unzstd"),
];

/// The reason why a file with a routing table cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The input cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The input is compressed; the text is the command that decompresses it.
    #[error("the file is compressed: uncompress it first ({0})")]
    Compressed(&'static str),
    /// The file has no supported format.
    #[error(
        "the input is neither an MRT dump nor the output of `birdc show route` or `vtysh -c 'show ip route'`"
    )]
    Unknown,
    /// A record of an MRT dump is truncated.
    #[error("the input is truncated: the record at byte {at} is incomplete, after {routes} routes")]
    CutShort {
        /// The offset of the record in the input, bytes.
        at: u64,
        /// The number of routes before the truncated record.
        routes: usize,
    },
    /// A record of an MRT dump has invalid contents.
    #[error("the record at byte {at}: {reason}")]
    Record {
        /// The offset of the record in the input, bytes.
        at: u64,
        /// The error in the record.
        reason: &'static str,
    },
    /// The file contains no routing table.
    #[error("the file contains no routing table (MRT type TABLE_DUMP_V2)")]
    NoTable,
    /// A line of a daemon's output is invalid.
    #[error("line {number}: {reason}")]
    Line {
        /// The number of the invalid line, from 1.
        number: usize,
        /// The error in the line.
        reason: String,
    },
}

/// The result of the conversion of a routing table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Converted {
    /// The number of routes that were written.
    pub routes: usize,
    /// The number of routes that were skipped, because they have no usable next hop.
    pub left_out: usize,
}

/// The target of a route, in the form in which it is written into the converted line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Leads {
    /// The route leads to one or more neighbours.
    To(Vec<Lead>),
    /// The route leads to hosts behind the interface of this name.
    Connected(String),
    /// The route has no next hop; the text is the type of the route in words of `ip route`: `blackhole`, `unreachable`,
    /// `prohibit`.
    Nowhere(&'static str),
}

/// A next hop of a route, in the form in which it is written into the converted line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lead {
    address: IpAddr,
    /// The name of the egress interface, if it is known.
    device: Option<String>,
    /// The weight of the next hop, if it is known.
    weight: Option<String>,
}

/// The writer of converted routes, one line each.
struct Lines<'a> {
    /// The neighbours that replace the next hops of the converted file.
    via: &'a [IpAddr],
    /// The index of each next hop of the converted file, from 0 in the order of first appearance.
    numbers: HashMap<IpAddr, usize>,
    each: &'a mut dyn FnMut(&str) -> io::Result<()>,
    done: Converted,
}

impl Lines<'_> {
    fn write(&mut self, prefix: Prefix, leads: &Leads) -> io::Result<()> {
        let line = match leads {
            Leads::To(all) => {
                let are_alike = all.iter().all(|lead| lead.weight == all[0].weight);
                let hops = all.iter().filter_map(|lead| {
                    let hop = self.hop(prefix, lead)?;
                    let weight = lead.weight.as_ref().filter(|_| !are_alike);
                    Some(match weight {
                        Some(weight) => format!("{hop} weight {weight}"),
                        None => hop,
                    })
                });
                let hops: Vec<String> = hops.collect();
                match hops.as_slice() {
                    [] => None,
                    [one] => Some(format!("{prefix} {one}")),
                    several => Some(format!("{prefix} nexthop {}", several.join(" nexthop "))),
                }
            }
            Leads::Connected(device) => Some(format!("{prefix} dev {device}")),
            Leads::Nowhere(word) => Some(format!("{word} {prefix}")),
        };
        match line {
            Some(line) => {
                self.done.routes += 1;
                (self.each)(&line)
            }
            None => {
                self.done.left_out += 1;
                Ok(())
            }
        }
    }

    /// Returns the text of a next hop (`via ADDRESS`) for a route to `prefix`; none if no next hop of the prefix's
    /// address family is available.
    fn hop(
        &mut self,
        prefix: Prefix,
        Lead {
            address, device, ..
        }: &Lead,
    ) -> Option<String> {
        let is_v4 = matches!(prefix, Prefix::V4(_));
        if self.via.is_empty() {
            let device = device.as_ref().map(|name| format!(" dev {name}"));
            let is_alike = address.is_ipv4() == is_v4;
            return is_alike.then(|| format!("via {address}{}", device.unwrap_or_default()));
        }
        let mut alike = self.via.iter().filter(|it| it.is_ipv4() == is_v4);
        let next = self.numbers.len();
        let number = *self.numbers.entry(*address).or_insert(next);
        let count = alike.clone().count().max(1);
        let via = alike.nth(number % count)?;
        Some(format!("via {via}"))
    }
}

/// Reads a routing table, and calls `each` with its routes, one after the other, as lines that the router reads. If
/// `via` lists neighbours, they replace the next hops of the table in rotation. A dump from another router needs this
/// replacement, because the next hops of that router are not neighbours here.
///
/// # Errors
/// Returns an error in the file, or an error that `each` returned. Before that, the function has called `each` with all
/// routes that precede the error.
pub fn convert(
    input: &mut dyn BufRead,
    via: &[IpAddr],
    each: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<Converted, ConvertError> {
    let mut lines = Lines {
        via,
        numbers: HashMap::new(),
        each,
        done: Converted::default(),
    };
    let first = input.fill_buf()?;
    if let Some((_, program)) = COMPRESSED
        .iter()
        .find(|(magic, _)| first.starts_with(magic))
    {
        return Err(ConvertError::Compressed(program));
    }
    match mrt::is_one(first) {
        true => mrt::read(input, &mut lines)?,
        false => daemon_output::read(input, &mut lines)?,
    }
    Ok(lines.done)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn converted(bytes: &[u8], via: &[&str]) -> Result<(Vec<String>, Converted), String> {
        let via: Vec<IpAddr> = via.iter().map(|it| it.parse().unwrap()).collect();
        let mut lines = Vec::new();
        let mut input = bytes;
        let done = convert(&mut input, &via, &mut |line| {
            lines.push(line.to_string());
            Ok(())
        });
        done.map(|done| (lines, done)).map_err(|e| e.to_string())
    }

    /// Returns a record of an MRT dump with the given subtype and content.
    fn record(subtype: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 1, 0, 13];
        bytes.extend(subtype.to_be_bytes());
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    /// Returns an entry of a route in an MRT dump: the encoded attribute `next_hop`, and a path of `systems` autonomous
    /// systems.
    fn entry(next_hop: &[u8], systems: u8) -> Vec<u8> {
        let mut attributes = vec![0x40, 1, 1, 0];
        attributes.extend([0x40, 2, 2 + 4 * systems, 2, systems]);
        attributes.extend((0..systems).flat_map(|_| [0, 0, 0xfd, 0xe8]));
        attributes.extend(next_hop);
        let mut bytes = vec![0, 0, 0, 0, 0, 1];
        bytes.extend((attributes.len() as u16).to_be_bytes());
        bytes.extend(attributes);
        bytes
    }

    fn route(prefix: &[u8], entries: &[Vec<u8>]) -> Vec<u8> {
        let count = (entries.len() as u16).to_be_bytes();
        [&[0, 0, 0, 7], prefix, &count, &entries.concat()].concat()
    }

    fn dump() -> Vec<u8> {
        let v4 = |last: u8| [0x40, 3, 4, 192, 0, 2, last];
        let mut v6 = vec![0x80, 14, 17, 16];
        v6.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        // Some programs write the family, the kind of route, and a link-local next hop after the global next hop.
        let mut long_v6 = vec![0x90, 14, 0, 37, 0, 2, 1, 32];
        long_v6.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        long_v6.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
        [
            record(1, &[0; 8]),
            record(
                2,
                &route(&[24, 20, 0, 1], &[entry(&v4(1), 3), entry(&v4(2), 2)]),
            ),
            record(2, &route(&[12, 20, 0xff], &[entry(&v4(3), 1)])),
            record(4, &route(&[32, 0x20, 1, 0xd, 0xb8], &[entry(&v6, 1)])),
            record(4, &route(&[32, 0x20, 1, 0xd, 0xb9], &[entry(&long_v6, 1)])),
            record(2, &route(&[8, 21], &[entry(&[], 1)])),
        ]
        .concat()
    }

    #[test]
    fn a_routing_table_dump_yields_the_routes_with_shortest_paths() {
        let (lines, done) = converted(&dump(), &[]).unwrap();
        let wanted = [
            "20.0.1.0/24 via 192.0.2.2",
            "20.240.0.0/12 via 192.0.2.3",
            "2001:db8::/32 via 2001:db8::9",
            "2001:db9::/32 via 2001:db8::8",
        ];
        assert_eq!(lines, wanted);
        assert_eq!((done.routes, done.left_out), (4, 1));
        // Neighbours replace the next hops of the dump, including next hops without an entry.
        let (lines, done) = converted(&dump(), &["10.0.0.2", "10.0.0.3"]).unwrap();
        let wanted = [
            "20.0.1.0/24 via 10.0.0.2",
            "20.240.0.0/12 via 10.0.0.3",
            "21.0.0.0/8 via 10.0.0.2",
        ];
        assert_eq!(lines, wanted);
        assert_eq!((done.routes, done.left_out), (3, 2));
    }

    #[test]
    fn a_truncated_or_invalid_routing_table_dump_is_refused() {
        let whole = dump();
        for length in 1..whole.len() {
            match converted(&whole[..length], &[]) {
                Ok((_, done)) => assert!(done.routes < 5),
                Err(error) => assert!(!error.contains('\n'), "{error}"),
            }
        }
        let error = converted(&whole[..whole.len() - 1], &[]).unwrap_err();
        assert!(error.contains("is incomplete, after 4 routes"), "{error}");
        let mut lying = whole.clone();
        // This is the length of the first route's prefix.
        lying[20 + 12 + 4] = 33;
        let error = converted(&lying, &[]).unwrap_err();
        assert!(error.contains("byte 20: its prefix"), "{error}");
        let huge = [&record(2, &[])[..8], &[0xff; 4]].concat();
        let error = converted(&huge, &[]).unwrap_err();
        assert!(error.contains("byte 0"), "{error}");
        assert!(converted(b"BZh91AY", &[]).unwrap_err().contains("bunzip2"));
        assert!(
            converted(&record(1, &[0; 8]), &[])
                .unwrap_err()
                .contains("no routing table")
        );
        assert!(
            converted(b"hello\n", &[])
                .unwrap_err()
                .contains("neither an MRT dump")
        );
        assert!(
            converted(b"", &[])
                .unwrap_err()
                .contains("neither an MRT dump")
        );
    }

    #[test]
    fn bird_output_is_converted_to_routes() {
        let text = "BIRD 2.0.12 ready.\nTable master4:\n\
            10.99.0.0/16         unicast [o4 07:27:00.000] * E2 (150/10/10000) [10.8.2.2]\n\tvia 10.8.2.2 on wan\n\
            10.98.0.0/16         unicast [o4 07:27:00.000] * E2 (150/10/10000) [10.8.2.2]\n\tvia 10.8.2.2 on wan weight 3\n\tvia 10.8.3.2 on lan weight 1\n\
            \u{20}                    unicast [pa 07:27:23.956] (100) [AS65001i]\n\tvia 10.8.1.2 on lan\n\
            10.8.1.0/24          unicast [direct1 07:27:00.000] * (240)\n\tdev lan\n\
            10.66.0.0/16         blackhole [s4 07:27:00.000] * (200)\n\
            10.67.0.0/16         prohibited [s4 07:27:00.000] * (200)\n\nTable master6:\n\
            2001:db8:9::/48      unreachable [s6 07:27:00.000] * (200)\n";
        let (lines, done) = converted(text.as_bytes(), &[]).unwrap();
        let wanted = [
            "10.99.0.0/16 via 10.8.2.2 dev wan",
            "10.98.0.0/16 nexthop via 10.8.2.2 dev wan weight 3 nexthop via 10.8.3.2 dev lan weight 1",
            "10.8.1.0/24 dev lan",
            "blackhole 10.66.0.0/16",
            "prohibit 10.67.0.0/16",
            "unreachable 2001:db8:9::/48",
        ];
        assert_eq!(lines, wanted);
        assert_eq!(done.left_out, 0);
        let cut = text.replace("via 10.8.3.2", "via 10.8.");
        let error = converted(cut.as_bytes(), &[]).unwrap_err();
        assert!(error.starts_with("line 7: "), "{error}");
    }

    #[test]
    fn frr_output_is_converted_to_routes() {
        let text = "Codes: K - kernel route, C - connected, L - local,\n       > - selected route, * - FIB route\n\n\
            O>* 10.99.0.0/16 [110/20] via 10.8.2.2, wan, weight 1, 00:00:10\n\
            O   10.8.2.0/24 [110/10] is directly connected, wan, weight 1, 00:00:19\n\
            B>  20.0.0.0/24 [20/0] via 10.9.9.9 (recursive), weight 1, 00:00:12\n\
            \u{20} *                    via 10.8.1.2, lan, weight 1, 00:00:12\n\
            B>* 20.0.1.0/24 [20/0] via 10.8.1.2, lan, weight 1, 00:00:12\n\
            \u{20} *                    via 10.8.3.2, wan, weight 1, 00:00:12\n\
            C>* 10.8.1.0/24 is directly connected, lan, 00:01:00\n\
            S>* 10.66.0.0/16 [1/0] unreachable (blackhole), weight 1, 00:00:01\n\
            S>* 10.67.0.0/16 [1/0] unreachable (ICMP unreachable), weight 1, 00:00:01\n\
            O>* 2001:db8:9::/48 [110/20] via fe80::1, wan, weight 1, 00:00:10\n";
        let (lines, _) = converted(text.as_bytes(), &[]).unwrap();
        let wanted = [
            "10.99.0.0/16 via 10.8.2.2 dev wan",
            "20.0.0.0/24 via 10.8.1.2 dev lan",
            "20.0.1.0/24 nexthop via 10.8.1.2 dev lan nexthop via 10.8.3.2 dev wan",
            "10.8.1.0/24 dev lan",
            "blackhole 10.66.0.0/16",
            "unreachable 10.67.0.0/16",
            "2001:db8:9::/48 via fe80::1 dev wan",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn no_corrupted_routing_table_dump_causes_a_panic() {
        let mut random = fastrand::Rng::with_seed(0x6396);
        let whole = dump();
        for _ in 0..5000 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(..=bytes.len()));
            let _ = converted(&bytes, &[]);
        }
    }
}
