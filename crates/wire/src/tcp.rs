//! TCP headers (RFC 9293 section 3.1): fields and checksum, no connection state.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice,
    Unaligned,
};

use crate::{Error, Sum, view};

const WHAT: &str = "TCP header";
const FIXED_LEN_BYTES: usize = size_of::<Header>();

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    source_port: U16,
    destination_port: U16,
    sequence: U32,
    acknowledgement: U32,
    words_and_flags: U16,
    window: U16,
    checksum: U16,
    urgent: U16,
}

/// The twelve bits after the data offset in a TCP header: four reserved, eight control bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(u16);

impl TcpFlags {
    /// Finish: the sender has no more data.
    pub const FIN: Self = Self(0x01);
    /// Synchronise: opens a connection.
    pub const SYN: Self = Self(0x02);
    /// Reset: refuses or aborts a connection.
    pub const RST: Self = Self(0x04);
    /// Push: the receiver shall deliver buffered data to the application.
    pub const PSH: Self = Self(0x08);
    /// Acknowledgement: the acknowledgement number is valid.
    pub const ACK: Self = Self(0x10);

    /// Returns true if all bits of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits that are set in `self` or in `other`.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A typed reference ("view") to the bytes of a TCP segment.
#[derive(Debug)]
pub struct Tcp<B: ByteSlice> {
    header: Ref<B, Header>,
    options: B,
    payload: B,
}

impl<B: SplitByteSlice> Tcp<B> {
    /// Makes a view of a TCP segment in `bytes`. The checksum is not verified.
    ///
    /// # Errors
    /// Returns `Truncated` if the header goes past the end; `BadLength` if the data offset is under 20 bytes.
    #[inline]
    pub fn new(bytes: B) -> Result<Self, Error> {
        let have = bytes.len();
        let (header, rest) = view::header::<B, Header>(bytes, WHAT)?;
        let header_len = usize::from(header.words_and_flags.get() >> 12) * 4;
        let Some(options_len) = header_len.checked_sub(FIXED_LEN_BYTES) else {
            let (length, min, max) = (header_len, FIXED_LEN_BYTES, 60);
            return Err(Error::BadLength {
                what: WHAT,
                length,
                min,
                max,
            });
        };
        if have < header_len {
            return Err(Error::Truncated {
                what: WHAT,
                need: header_len,
                have,
            });
        }
        let (options, payload) = view::take(rest, options_len, WHAT)?;
        Ok(Self {
            header,
            options,
            payload,
        })
    }
}

impl<B: ByteSlice> Tcp<B> {
    /// Returns the source port.
    pub fn source_port(&self) -> u16 {
        self.header.source_port.get()
    }

    /// Returns the destination port.
    pub fn destination_port(&self) -> u16 {
        self.header.destination_port.get()
    }

    /// Returns the sequence number of the first payload byte.
    pub fn sequence(&self) -> u32 {
        self.header.sequence.get()
    }

    /// Returns the next sequence number that the sender expects.
    pub fn acknowledgement(&self) -> u32 {
        self.header.acknowledgement.get()
    }

    /// Returns the header length: 20 to 60 bytes.
    pub fn header_len_bytes(&self) -> usize {
        FIXED_LEN_BYTES + self.options.len()
    }

    /// Returns the reserved and control bits.
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.header.words_and_flags.get() & 0x0fff)
    }

    /// Returns the receive window of the sender, unscaled.
    pub fn window(&self) -> u16 {
        self.header.window.get()
    }

    /// Returns the checksum as it is in the segment.
    pub fn checksum(&self) -> u16 {
        self.header.checksum.get()
    }

    /// Returns the end of urgent data: its distance from the sequence number, in bytes.
    pub fn urgent(&self) -> u16 {
        self.header.urgent.get()
    }

    /// Returns the options of the header, undecoded: 0 to 40 bytes.
    pub fn options(&self) -> &[u8] {
        &self.options
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn sum(&self) -> Sum {
        Sum::of(self.header.as_bytes())
            .combine(Sum::of(&self.options))
            .combine(Sum::of(&self.payload))
    }

    /// Verifies the checksum of the TCP segment.
    ///
    /// # Errors
    /// Returns `BadChecksum` if the checksum is wrong.
    pub fn verify_checksum(&self, pseudo_header: Sum) -> Result<(), Error> {
        if pseudo_header.combine(self.sum()).is_valid() {
            Ok(())
        } else {
            Err(Error::BadChecksum { what: WHAT })
        }
    }
}

impl<B: ByteSliceMut> Tcp<B> {
    /// Computes the checksum of the segment and writes it into the header.
    pub fn fill_checksum(&mut self, pseudo_header: Sum) {
        self.header.checksum.set(0);
        let checksum = pseudo_header.combine(self.sum()).checksum();
        self.header.checksum.set(checksum);
    }

    /// Returns the payload for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.payload
    }
}

/// The fields of a TCP header as a Rust value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpRepr<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number of the first payload byte.
    pub sequence: u32,
    /// Next sequence number that the sender expects.
    pub acknowledgement: u32,
    /// Reserved and control bits.
    pub flags: TcpFlags,
    /// Receive window of the sender, unscaled.
    pub window: u16,
    /// End of urgent data: its distance from the sequence number, in bytes.
    pub urgent: u16,
    /// Options: 0 to 40 bytes, a multiple of 4.
    pub options: &'a [u8],
}

impl<'a> TcpRepr<'a> {
    /// Reads the header; its checksum is verified only by [`Tcp::verify_checksum`].
    ///
    /// # Errors
    /// Returns no errors at present; `parse` has this signature for all protocols of the crate.
    pub fn parse<B: ByteSlice>(view: &'a Tcp<B>) -> Result<Self, Error> {
        Ok(Self {
            source_port: view.source_port(),
            destination_port: view.destination_port(),
            sequence: view.sequence(),
            acknowledgement: view.acknowledgement(),
            flags: view.flags(),
            window: view.window(),
            urgent: view.urgent(),
            options: view.options(),
        })
    }

    /// Returns the header's length: 20 to 60 bytes.
    pub fn header_len_bytes(&self) -> usize {
        FIXED_LEN_BYTES + self.options.len()
    }

    /// Writes the header with a checksum of 0 to the front of `segment`; the remaining bytes are the payload.
    ///
    /// Once the payload is written, [`Tcp::fill_checksum`] completes the segment.
    ///
    /// # Errors
    /// Returns `Truncated` if the header does not fit; `BadLength` if the options are over 40 bytes or no multiple of
    /// 4.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a header has at most 60 bytes"
    )]
    pub fn emit<'b>(&self, segment: &'b mut [u8]) -> Result<Tcp<&'b mut [u8]>, Error> {
        let options_len = self.options.len();
        if options_len > 40 || !options_len.is_multiple_of(4) {
            let (length, min, max) = (options_len, 0, 40);
            return Err(Error::BadLength {
                what: "TCP options",
                length,
                min,
                max,
            });
        }
        let words = (self.header_len_bytes() / 4) as u16;
        let what = "room for the TCP header";
        let (mut header, rest) = view::header::<_, Header>(segment, what)?;
        let (options, payload) = view::take(rest, options_len, what)?;
        *header = Header {
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            sequence: self.sequence.into(),
            acknowledgement: self.acknowledgement.into(),
            words_and_flags: (words << 12 | self.flags.0).into(),
            window: self.window.into(),
            checksum: 0.into(),
            urgent: self.urgent.into(),
        };
        options.copy_from_slice(self.options);
        Ok(Tcp {
            header,
            options,
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::{IpProtocol, checksum};

    #[test]
    fn wrong_tcp_data_offsets_are_refused() {
        let mut bytes = [0; 24];
        for (words, good) in [
            (0, false),
            (4, false),
            (5, true),
            (6, true),
            (7, false),
            (15, false),
        ] {
            bytes[12] = words << 4;
            assert_eq!(Tcp::new(&bytes[..]).is_ok(), good, "{words} words");
        }
        assert!(matches!(
            Tcp::new(&bytes[..19]),
            Err(Error::Truncated { .. })
        ));
    }

    #[test]
    fn options_of_a_wrong_length_are_not_written() {
        let mut bytes = [0x50; 80];
        let view = Tcp::new(&bytes[..20]).unwrap();
        let header = TcpRepr::parse(&view).unwrap();
        for length in [1, 44] {
            let header = TcpRepr {
                options: &[1; 44][..length],
                ..header
            };
            assert!(matches!(
                header.emit(&mut [0; 80]),
                Err(Error::BadLength { .. })
            ));
        }
        bytes[13] = 0x12;
        let view = Tcp::new(&bytes[..]).unwrap();
        assert!(view.flags().contains(TcpFlags::SYN.union(TcpFlags::ACK)));
        assert!(!view.flags().contains(TcpFlags::FIN));
    }

    proptest! {
        #[test]
        fn parsed_tcp_headers_are_emitted_unchanged_and_agree_with_etherparse(
            mut bytes in proptest::collection::vec(any::<u8>(), 60..90), words in 5u8..16, a: [u8; 4], b: [u8; 4],
        ) {
            // The reserved bits are zero, because the reference implementation does not preserve them.
            bytes[12] = words << 4;
            let (source, destination) = (Ipv4Addr::from(a), Ipv4Addr::from(b));
            let length = bytes.len() as u16;
            let pseudo_header = checksum::pseudo_header_v4(source, destination, IpProtocol::TCP, length);
            Tcp::new(&mut bytes[..]).unwrap().fill_checksum(pseudo_header);
            let view = Tcp::new(&bytes[..]).unwrap();
            view.verify_checksum(pseudo_header).unwrap();
            let repr = TcpRepr::parse(&view).unwrap();
            let mut again = bytes.clone();
            again[..repr.header_len_bytes()].fill(0xaa);
            repr.emit(&mut again).unwrap().fill_checksum(pseudo_header);
            prop_assert_eq!(&again, &bytes);

            let (theirs, payload) = etherparse::TcpHeader::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.calc_checksum_ipv4_raw(a, b, payload).unwrap(), view.checksum());
            prop_assert_eq!(theirs.sequence_number, repr.sequence);
            prop_assert_eq!(theirs.window_size, repr.window);
            prop_assert_eq!(theirs.syn, repr.flags.contains(TcpFlags::SYN));
            prop_assert_eq!(payload, view.payload());
        }
    }
}
