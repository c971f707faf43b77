//! Prefixes of IPv4 and IPv6: a network's address and its number of significant bits.
//!
//! They are written as in RFC 4632, section 3.1 (`192.0.2.0/24`), and RFC 4291, section 2.3 (`2001:db8::/32`).

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// A prefix of IPv4.
pub type PrefixV4 = Prefix<u32>;
/// A prefix of IPv6.
pub type PrefixV6 = Prefix<u128>;

/// A prefix: all addresses that begin with the same bits. In the order of prefixes, each prefix precedes the longer
/// prefixes within it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix<A> {
    network: A,
    length: u8,
}

/// The reason why a text, or an address with a length, is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WrongPrefix {
    /// The prefix length exceeds the length of the family's addresses.
    #[error("a prefix of {family} has at most {most} bits, not {length}")]
    TooLong {
        /// Name of the address family.
        family: &'static str,
        /// Length of an address, bits.
        most: u8,
        /// Given prefix length, bits.
        length: u8,
    },
    /// Bits of the address after the prefix length are set.
    #[error("bits beyond the prefix length must be 0: write {meant}, not {given}")]
    HostBits {
        /// The given prefix, in which host bits are set.
        given: String,
        /// The prefix of the given length that contains the given address.
        meant: String,
    },
    /// The text does not have the form of a prefix.
    #[error("a prefix of {family} is written {example}, not '{text}'")]
    Form {
        /// Name of the address family.
        family: &'static str,
        /// An example of a prefix of the family.
        example: &'static str,
        /// The given text, which is no prefix.
        text: String,
    },
}

impl<A: Address> Prefix<A> {
    /// The prefix that contains all addresses.
    pub const ALL: Self = Self {
        network: A::ZERO,
        length: 0,
    };

    /// Makes a prefix of `length` bits.
    ///
    /// # Errors
    /// Returns [`WrongPrefix::TooLong`] if the length exceeds that of the family's addresses, [`WrongPrefix::HostBits`]
    /// if bits after it are set.
    pub fn new(network: A, length: u8) -> Result<Self, WrongPrefix> {
        if length > A::BITS {
            return Err(WrongPrefix::TooLong {
                family: A::FAMILY,
                most: A::BITS,
                length,
            });
        }
        let meant = Self::of(network, length);
        if meant.network != network {
            return Err(WrongPrefix::HostBits {
                given: Self { network, length }.to_string(),
                meant: meant.to_string(),
            });
        }
        Ok(meant)
    }

    /// Returns the prefix of `length` bits (at most the family's) that contains `address`.
    pub fn of(address: A, length: u8) -> Self {
        let length = length.min(A::BITS);
        Self {
            network: address.first(length),
            length,
        }
    }

    /// Returns the first address of the prefix.
    pub fn network(self) -> A {
        self.network
    }

    /// Returns the prefix length, bits.
    pub fn length(self) -> u8 {
        self.length
    }

    /// Returns the last address of the prefix.
    pub fn last(self) -> A {
        self.network.last(self.length)
    }

    /// Returns whether `address` is in the prefix.
    pub fn holds(self, address: A) -> bool {
        address.first(self.length) == self.network
    }

    /// Returns whether all addresses of `other` are also in this prefix; a prefix covers itself.
    pub fn covers(self, other: Self) -> bool {
        self.length <= other.length && self.holds(other.network)
    }
}

impl<A: Address> FromStr for Prefix<A> {
    type Err = WrongPrefix;

    fn from_str(text: &str) -> Result<Self, WrongPrefix> {
        let form = || WrongPrefix::Form {
            family: A::FAMILY,
            example: A::EXAMPLE,
            text: text.to_owned(),
        };
        let (address, length) = text.split_once('/').ok_or_else(form)?;
        if !length.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(form());
        }
        let network = A::parse(address).ok_or_else(form)?;
        Self::new(network, length.parse().map_err(|_| form())?)
    }
}

impl<A: Address> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network.text(), self.length)
    }
}

impl<A: Address> fmt::Debug for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address of a family, as an integer (`u32` for IPv4, `u128` for IPv6).
pub trait Address: Copy + Ord + fmt::Debug + 'static {
    /// Number of bits of an address.
    const BITS: u8;
    /// The address whose bits are all 0.
    const ZERO: Self;
    /// Name of the address family.
    const FAMILY: &'static str;
    /// Example of a prefix in text form.
    const EXAMPLE: &'static str;

    /// Returns the lowest address that has the same first `length` bits.
    fn first(self, length: u8) -> Self;
    /// Returns the highest address that has the same first `length` bits.
    fn last(self, length: u8) -> Self;
    /// Returns the number of leading bits in which two addresses are equal.
    fn shared_bits(self, other: Self) -> u8;
    /// Parses an address of this family; None if the text is not one.
    fn parse(text: &str) -> Option<Self>;
    /// Returns an address as text.
    fn text(self) -> String;
}

macro_rules! address {
    ($number:ty, $standard:ty, $family:literal, $example:literal) => {
        impl Address for $number {
            const BITS: u8 = <$number>::BITS as u8;
            const ZERO: Self = 0;
            const FAMILY: &'static str = $family;
            const EXAMPLE: &'static str = $example;

            #[inline]
            fn first(self, length: u8) -> Self {
                self & !<$number>::MAX.checked_shr(length.into()).unwrap_or(0)
            }

            #[inline]
            fn last(self, length: u8) -> Self {
                self | <$number>::MAX.checked_shr(length.into()).unwrap_or(0)
            }

            #[inline]
            fn shared_bits(self, other: Self) -> u8 {
                (self ^ other).leading_zeros() as u8
            }

            fn parse(text: &str) -> Option<Self> {
                text.parse::<$standard>().ok().map(Self::from)
            }

            fn text(self) -> String {
                <$standard>::from(self).to_string()
            }
        }
    };
}

address!(u32, Ipv4Addr, "IPv4", "192.0.2.0/24");
address!(u128, Ipv6Addr, "IPv6", "2001:db8::/32");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn printed_prefixes_equal_the_parsed_text() {
        for text in ["0.0.0.0/0", "10.0.0.0/8", "192.0.2.128/25", "192.0.2.1/32"] {
            assert_eq!(text.parse::<PrefixV4>().unwrap().to_string(), text);
        }
        for text in ["::/0", "2001:db8::/32", "2001:db8::1/128"] {
            assert_eq!(text.parse::<PrefixV6>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn prefixes_with_host_bits_or_excess_length_are_refused() {
        let message = |text: &str| text.parse::<PrefixV4>().unwrap_err().to_string();
        assert_eq!(
            message("10.0.0.1/8"),
            "bits beyond the prefix length must be 0: write 10.0.0.0/8, not 10.0.0.1/8"
        );
        assert_eq!(
            message("10.0.0.0/33"),
            "a prefix of IPv4 has at most 32 bits, not 33"
        );
        for text in [
            "",
            "10.0.0.0",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "::/0",
            "1.2.3.4/256",
        ] {
            let said = format!("a prefix of IPv4 is written 192.0.2.0/24, not '{text}'");
            assert_eq!(message(text), said);
        }
        let message = |text: &str| text.parse::<PrefixV6>().unwrap_err().to_string();
        assert_eq!(
            message("::/129"),
            "a prefix of IPv6 has at most 128 bits, not 129"
        );
        assert!(message("::1/127").contains("write ::/127"));
    }

    #[test]
    fn a_prefix_covers_itself_and_its_more_specific_prefixes() {
        let prefix = |text: &str| text.parse::<PrefixV4>().unwrap();
        assert!(PrefixV4::ALL.covers(prefix("10.0.0.0/8")));
        assert!(prefix("10.0.0.0/8").covers(prefix("10.0.0.0/8")));
        assert!(prefix("10.0.0.0/8").covers(prefix("10.255.255.255/32")));
        assert!(!prefix("10.0.0.0/8").covers(prefix("11.0.0.0/8")));
        assert!(!prefix("10.0.0.0/9").covers(prefix("10.0.0.0/8")));
        assert_eq!(prefix("10.0.0.0/8").last(), 0x0aff_ffff);
        assert_eq!(PrefixV4::ALL.last(), u32::MAX);
    }

    proptest! {
        #[test]
        fn every_printed_prefix_is_parsed_back_unchanged(address: u128, length in 0_u8..=128) {
            let v6 = PrefixV6::of(address, length);
            prop_assert_eq!(v6.to_string().parse(), Ok(v6));
            let v4 = PrefixV4::of(address as u32, length);
            prop_assert_eq!(v4.to_string().parse(), Ok(v4));
        }
    }
}
