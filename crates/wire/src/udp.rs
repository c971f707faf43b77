//! UDP datagrams (RFC 768; over IPv6 RFC 8200 section 8.1).

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice,
    Unaligned,
};

use crate::{Error, Sum, view};

const WHAT: &str = "UDP header";

/// The length of a UDP header in bytes.
pub const HEADER_LEN_BYTES: usize = size_of::<Header>();

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    source_port: U16,
    destination_port: U16,
    length: U16,
    checksum: U16,
}

/// A typed reference ("view") to the bytes of a UDP datagram; bytes beyond the datagram's length field are ignored.
#[derive(Debug)]
pub struct Udp<B: ByteSlice> {
    header: Ref<B, Header>,
    payload: B,
}

impl<B: SplitByteSlice> Udp<B> {
    /// Makes a view of a UDP datagram in `bytes`. The checksum is not verified.
    ///
    /// # Errors
    /// Returns `Truncated` if the header or the length goes past the end; `BadLength` if the length is under 8 bytes.
    #[inline]
    pub fn new(bytes: B) -> Result<Self, Error> {
        let have = bytes.len();
        let (header, rest) = view::header::<B, Header>(bytes, WHAT)?;
        let length = usize::from(header.length.get());
        let Some(payload_len) = length.checked_sub(HEADER_LEN_BYTES) else {
            let (min, max) = (HEADER_LEN_BYTES, 0xffff);
            return Err(Error::BadLength {
                what: "UDP datagram",
                length,
                min,
                max,
            });
        };
        if have < length {
            return Err(Error::Truncated {
                what: "UDP datagram",
                need: length,
                have,
            });
        }
        let (payload, _) = view::take(rest, payload_len, WHAT)?;
        Ok(Self { header, payload })
    }
}

impl<B: ByteSlice> Udp<B> {
    /// Returns the source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.header.source_port.get()
    }

    /// Returns the destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        self.header.destination_port.get()
    }

    /// Returns the length of header and payload in bytes.
    #[inline]
    pub fn length(&self) -> u16 {
        self.header.length.get()
    }

    /// Returns the checksum as it is in the datagram; 0 means that the sender computed none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.header.checksum.get()
    }

    /// Returns the payload of the datagram, which ends where the length field says.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns the ones-complement sum over header and payload, without the pseudo header.
    #[inline]
    pub fn sum(&self) -> Sum {
        Sum::of(self.header.as_bytes()).combine(Sum::of(&self.payload))
    }

    /// Verifies the checksum. A checksum of 0 passes: the sender computed none, which is allowed over IPv4 only, so
    /// over IPv6 the caller must reject it.
    ///
    /// # Errors
    /// Returns `BadChecksum` if the checksum is wrong.
    #[inline]
    pub fn verify_checksum(&self, pseudo_header: Sum) -> Result<(), Error> {
        if self.checksum() == 0 || pseudo_header.combine(self.sum()).is_valid() {
            Ok(())
        } else {
            Err(Error::BadChecksum { what: WHAT })
        }
    }
}

impl<B: ByteSliceMut> Udp<B> {
    /// Computes the checksum of the datagram and writes it into the header; a checksum of 0 is written as 0xffff.
    #[inline]
    pub fn fill_checksum(&mut self, pseudo_header: Sum) {
        self.header.checksum.set(0);
        let checksum = nonzero(pseudo_header.combine(self.sum()).checksum());
        self.header.checksum.set(checksum);
    }

    /// Returns the payload for writing.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.payload
    }
}

/// Returns the checksum in the form in which UDP transmits it: 0 means "none", so a computed 0 becomes 0xffff, which is
/// its equivalent.
#[inline]
pub fn nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// The fields of a UDP header as a Rust value, independent of the packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRepr {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Payload length in bytes.
    pub payload_len_bytes: usize,
}

impl UdpRepr {
    /// Reads the header; its checksum is verified only by [`Udp::verify_checksum`].
    ///
    /// # Errors
    /// Returns no errors at present; `parse` has this signature for all protocols of the crate.
    pub fn parse<B: ByteSlice>(view: &Udp<B>) -> Result<Self, Error> {
        Ok(Self {
            source_port: view.source_port(),
            destination_port: view.destination_port(),
            payload_len_bytes: view.payload().len(),
        })
    }

    /// Writes the header with a checksum of 0 to the front of `buffer` and returns a view of the datagram.
    ///
    /// Once the payload is written, [`Udp::fill_checksum`] completes the datagram.
    ///
    /// # Errors
    /// Returns `Truncated` if header and payload do not fit; `BadLength` if they are over 65535 bytes.
    pub fn emit<'a>(&self, buffer: &'a mut [u8]) -> Result<Udp<&'a mut [u8]>, Error> {
        let total_len = HEADER_LEN_BYTES.saturating_add(self.payload_len_bytes);
        let Ok(length) = u16::try_from(total_len) else {
            let (length, min, max) = (total_len, HEADER_LEN_BYTES, 0xffff);
            return Err(Error::BadLength {
                what: "UDP datagram",
                length,
                min,
                max,
            });
        };
        let buffer = view::room(buffer, total_len, "room for the UDP datagram")?;
        let (mut header, payload) = view::header::<_, Header>(buffer, WHAT)?;
        *header = Header {
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            length: length.into(),
            checksum: 0.into(),
        };
        Ok(Udp { header, payload })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::{IpProtocol, checksum};

    #[test]
    fn wrong_udp_lengths_are_refused() {
        let bytes = [0, 1, 0, 2, 0, 12, 0, 0, 9, 9, 9, 9];
        assert_eq!(Udp::new(&bytes[..]).unwrap().payload(), &[9; 4]);
        for length in 0..12 {
            assert!(matches!(
                Udp::new(&bytes[..length]),
                Err(Error::Truncated { .. })
            ));
        }
        for (lie, high) in [(7, 0), (0, 0), (13, 0), (12, 1)] {
            let mut bytes = bytes;
            bytes[4..6].copy_from_slice(&[high, lie]);
            assert!(Udp::new(&bytes[..]).is_err(), "{high} {lie}");
        }
    }

    #[test]
    fn packets_without_checksum_pass_and_zero_is_emitted_as_ffff() {
        let mut bytes = [0; 10];
        let repr = UdpRepr {
            source_port: 1,
            destination_port: 2,
            payload_len_bytes: 2,
        };
        let mut view = repr.emit(&mut bytes).unwrap();
        view.verify_checksum(Sum::ZERO.add_u16(77)).unwrap();
        // 1 + 2 + 10 + this word fold to 0xffff, whose complement is 0.
        view.payload_mut()
            .copy_from_slice(&(0xffff_u16 - 13).to_be_bytes());
        view.fill_checksum(Sum::ZERO);
        assert_eq!(view.checksum(), 0xffff);
        view.verify_checksum(Sum::ZERO).unwrap();
    }

    proptest! {
        #[test]
        fn parsed_udp_headers_are_emitted_unchanged_and_agree_with_etherparse(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..90), a: [u8; 16], b: [u8; 16],
        ) {
            let length = bytes.len() as u16;
            bytes[4..6].copy_from_slice(&length.to_be_bytes());
            let (a, b) = (Ipv6Addr::from(a), Ipv6Addr::from(b));
            let pseudo_header = checksum::pseudo_header_v6(a, b, IpProtocol::UDP, length.into());
            Udp::new(&mut bytes[..]).unwrap().fill_checksum(pseudo_header);
            let view = Udp::new(&bytes[..]).unwrap();
            view.verify_checksum(pseudo_header).unwrap();
            let repr = UdpRepr::parse(&view).unwrap();
            let mut again = bytes.clone();
            again[..8].fill(0xaa);
            repr.emit(&mut again).unwrap().fill_checksum(pseudo_header);
            prop_assert_eq!(&again, &bytes);

            let (theirs, payload) = etherparse::UdpHeader::from_slice(&bytes).unwrap();
            let sum = theirs.calc_checksum_ipv6_raw(a.octets(), b.octets(), payload).unwrap();
            prop_assert_eq!(view.checksum(), sum);
            prop_assert_eq!(theirs.source_port, repr.source_port);
            prop_assert_eq!(theirs.destination_port, repr.destination_port);
        }
    }
}
