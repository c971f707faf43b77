//! A reader of successive fields, with fixed lengths or with a length prefix.

/// The bytes of a message that were not read yet; each read removes a field from their front.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// Removes `bytes` bytes from the front and returns them; returns none if fewer remain.
    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    /// Removes a number of `bytes` bytes from the front and returns it, most significant byte first.
    pub fn number(&mut self, bytes: usize) -> Option<u64> {
        let fold = |all: u64, &byte: &u8| all << 8 | u64::from(byte);
        Some(self.take(bytes)?.iter().fold(0, fold))
    }

    /// Removes a string after a length prefix of `bytes` bytes, and returns the string without the prefix.
    pub fn string(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let len = self.number(bytes)?;
        self.take(usize::try_from(len).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_beyond_the_remaining_bytes_return_nothing() {
        let mut cursor = Cursor(b"\x01\x02\x00\x03abcd");
        assert_eq!(cursor.number(2), Some(0x0102));
        assert_eq!(cursor.string(2), Some(&b"abc"[..]));
        assert_eq!(cursor.take(2), None);
        assert_eq!(cursor.take(1), Some(&b"d"[..]));
        assert_eq!(cursor.number(1), None);
        assert_eq!(Cursor(b"\x09ab").string(1), None);
    }
}
