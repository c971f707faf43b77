//! The table snapshots of MRT dumps (RFC 6396 section 4.3), also with path identifiers (RFC 8050 section 4).

use super::{ConvertError, Lead, Leads, Lines};
use crate::prefix::Prefix;
use std::io::{BufRead, ErrorKind, Read};
use std::net::IpAddr;

const HEADER_BYTES: usize = 12;
/// The limit on the length of an MRT record, bytes. A record with the entries of some thousand peers for one prefix is
/// shorter.
const LONGEST_RECORD: usize = 16 << 20;
/// The MRT record type of table snapshots, and the older record type, which is unsupported.
const TABLE_DUMP_V2: u16 = 13;
const TABLE_DUMP: u16 = 12;
/// The type codes of the BGP path attributes that are parsed (RFC 4271 section 4.3, RFC 4760 section 3).
const AS_PATH: u8 = 2;
const NEXT_HOP: u8 = 3;
const MP_REACH_NLRI: u8 = 14;
const EXTENDED_LENGTH: u8 = 0x10;
/// The placeholder for the next hop of a route whose entry has no next hop.
const UNSAID: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
/// The type of a segment of an AS path whose autonomous systems count as one (RFC 4271 section 9.1.2.2).
const AS_SET: u8 = 1;

/// Returns true if a file that begins with the given bytes is an MRT dump.
pub(super) fn is_one(first: &[u8]) -> bool {
    let kind = first
        .get(4..6)
        .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    kind.is_some_and(|kind| (TABLE_DUMP..=17).contains(&kind) || matches!(kind, 32 | 33 | 48 | 49))
}

/// Reads all records of an MRT dump, and passes their routes to `lines`.
pub(super) fn read(input: &mut dyn BufRead, lines: &mut Lines<'_>) -> Result<(), ConvertError> {
    let mut at = 0;
    let mut has_table = false;
    let mut body = Vec::new();
    while !input.fill_buf()?.is_empty() {
        let cut_short = |e: std::io::Error, lines: &Lines<'_>| match e.kind() {
            ErrorKind::UnexpectedEof => ConvertError::CutShort {
                at,
                routes: lines.done.routes,
            },
            _ => e.into(),
        };
        let wrong = |reason| ConvertError::Record { at, reason };
        let mut header = [0; HEADER_BYTES];
        input
            .read_exact(&mut header)
            .map_err(|e| cut_short(e, lines))?;
        let [_, _, _, _, k0, k1, s0, s1, l0, l1, l2, l3] = header;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if length > LONGEST_RECORD {
            return Err(wrong("it is longer than any record of a table"));
        }
        body.clear();
        let read = input.take(length as u64).read_to_end(&mut body)?;
        if read < length {
            return Err(cut_short(ErrorKind::UnexpectedEof.into(), lines));
        }
        let (kind, subtype) = (u16::from_be_bytes([k0, k1]), u16::from_be_bytes([s0, s1]));
        let Some((is_v4, has_path_id)) = unicast(kind, subtype) else {
            at += (HEADER_BYTES + length) as u64;
            continue;
        };
        has_table = true;
        let (prefix, next_hop) = route(&body, is_v4, has_path_id).map_err(wrong)?;
        // Routes that the dumping router has not learned by BGP have no next hop: only a configured replacement can be
        // used.
        let unsaid = || (!lines.via.is_empty()).then_some(UNSAID);
        let next_hop = next_hop.or_else(unsaid);
        let leads = Leads::To(
            next_hop
                .map(|address| Lead {
                    address,
                    device: None,
                    weight: None,
                })
                .into_iter()
                .collect(),
        );
        lines.write(prefix, &leads)?;
        at += (HEADER_BYTES + length) as u64;
    }
    match has_table {
        true => Ok(()),
        false => Err(ConvertError::NoTable),
    }
}

/// Returns for a record of unicast routes whether they are of IPv4, and whether they have path identifiers; None for
/// other records, which are skipped.
fn unicast(kind: u16, subtype: u16) -> Option<(bool, bool)> {
    match (kind, subtype) {
        (TABLE_DUMP_V2, 2) => Some((true, false)),
        (TABLE_DUMP_V2, 4) => Some((false, false)),
        (TABLE_DUMP_V2, 8) => Some((true, true)),
        (TABLE_DUMP_V2, 10) => Some((false, true)),
        _ => None,
    }
}

/// A cursor over the bytes of a record.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]))
    }
}

/// Returns the prefix of a route, and the next hop of the route's entry with the shortest AS path, if an entry has a
/// next hop.
fn route(
    body: &[u8],
    is_v4: bool,
    has_path_id: bool,
) -> Result<(Prefix, Option<IpAddr>), &'static str> {
    const ENDS: &str = "it ends within a route";
    let mut body = Reader(body);
    body.take(4).ok_or(ENDS)?;
    let length = body.byte().ok_or(ENDS)?;
    if length > if is_v4 { 32 } else { 128 } {
        return Err("its prefix is longer than an address");
    }
    let bytes = body.take(usize::from(length).div_ceil(8)).ok_or(ENDS)?;
    let mut address = [0; 16];
    address[..bytes.len()].copy_from_slice(bytes);
    let [a, b, c, d, ..] = address;
    let address = match is_v4 {
        true => IpAddr::from([a, b, c, d]),
        false => IpAddr::from(address),
    };
    let prefix = Prefix::of(address, length);
    let count = body.number().ok_or(ENDS)?;
    let mut best: Option<(usize, IpAddr)> = None;
    for _ in 0..count {
        body.take(6 + if has_path_id { 4 } else { 0 }).ok_or(ENDS)?;
        let length = body.number().ok_or(ENDS)?;
        let attributes = body.take(length.into()).ok_or(ENDS)?;
        let (path, next_hop) = path(attributes).ok_or("the attributes of a path end within one")?;
        if let Some(next_hop) = next_hop
            && best.is_none_or(|(shortest, _)| path < shortest)
        {
            best = Some((path, next_hop));
        }
    }
    Ok((prefix, best.map(|(_, next_hop)| next_hop)))
}

/// Returns the length of the AS path in the attributes, and the next hop if there is one.
fn path(attributes: &[u8]) -> Option<(usize, Option<IpAddr>)> {
    let mut rest = Reader(attributes);
    let (mut length, mut next_hop) = (0, None);
    while !rest.0.is_empty() {
        let flags = rest.byte()?;
        let kind = rest.byte()?;
        let bytes = match flags & EXTENDED_LENGTH {
            0 => rest.byte()?.into(),
            _ => rest.number()?.into(),
        };
        let value = rest.take(bytes)?;
        match kind {
            AS_PATH => length = systems(value)?,
            NEXT_HOP => next_hop = <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
            MP_REACH_NLRI => next_hop = reached_by(value).or(next_hop),
            _ => {}
        }
    }
    Some((length, next_hop))
}

/// Returns the number of autonomous systems of an AS path, each of which has four bytes in the attribute.
fn systems(value: &[u8]) -> Option<usize> {
    let mut rest = Reader(value);
    let mut sum = 0;
    while !rest.0.is_empty() {
        let kind = rest.byte()?;
        let count = usize::from(rest.byte()?);
        rest.take(4 * count)?;
        sum += if kind == AS_SET { 1 } else { count };
    }
    Some(sum)
}

/// Returns the next hop in a multiprotocol attribute. The next hop is encoded as a length and an address. Some files
/// have the complete attribute, which begins with the address family and the subsequent address family, and thus with a
/// 0 byte. A link-local address may follow a global one.
fn reached_by(value: &[u8]) -> Option<IpAddr> {
    let mut rest = Reader(value);
    if value.first() == Some(&0) {
        rest.take(3)?;
    }
    let length = rest.byte()?;
    let address = rest.take(length.into())?;
    match address.len() {
        4 => <[u8; 4]>::try_from(address).ok().map(IpAddr::from),
        16 | 32 => <[u8; 16]>::try_from(&address[..16]).ok().map(IpAddr::from),
        _ => None,
    }
}
