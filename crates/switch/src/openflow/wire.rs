//! Reads and writes the numbers in OpenFlow messages: reading checks every length, and writing uses network byte order.

/// The reason why an OpenFlow message is refused: type and code of the error reply. (OpenFlow 1.3.5, section 7.4.4.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrong(pub u16, pub u16);

impl Wrong {
    pub const BAD_VERSION: Self = Self(1, 0);
    pub const BAD_TYPE: Self = Self(1, 1);
    pub const BAD_MULTIPART: Self = Self(1, 2);
    pub const BAD_EXPERIMENTER: Self = Self(1, 3);
    pub const BAD_LENGTH: Self = Self(1, 6);
    pub const BUFFER_UNKNOWN: Self = Self(1, 8);
    pub const IS_SLAVE: Self = Self(1, 10);
    pub const BAD_PACKET: Self = Self(1, 12);
    pub const BAD_ACTION: Self = Self(2, 0);
    pub const BAD_ACTION_LENGTH: Self = Self(2, 1);
    pub const BAD_OUT_PORT: Self = Self(2, 4);
    pub const BAD_ARGUMENT: Self = Self(2, 5);
    pub const TOO_MANY_ACTIONS: Self = Self(2, 7);
    pub const BAD_QUEUE: Self = Self(2, 8);
    pub const BAD_OUT_GROUP: Self = Self(2, 9);
    pub const MATCH_INCONSISTENT: Self = Self(2, 10);
    pub const UNSUPPORTED_ORDER: Self = Self(2, 11);
    pub const BAD_SET_TYPE: Self = Self(2, 13);
    pub const BAD_SET_LENGTH: Self = Self(2, 14);
    pub const BAD_SET_VALUE: Self = Self(2, 15);
    pub const BAD_INSTRUCTION: Self = Self(3, 0);
    pub const UNSUPPORTED_INSTRUCTION: Self = Self(3, 1);
    pub const BAD_NEXT_TABLE: Self = Self(3, 2);
    pub const BAD_INSTRUCTION_LENGTH: Self = Self(3, 7);
    pub const BAD_MATCH_TYPE: Self = Self(4, 0);
    pub const BAD_MATCH_LENGTH: Self = Self(4, 1);
    pub const BAD_FIELD: Self = Self(4, 6);
    pub const BAD_VALUE: Self = Self(4, 7);
    pub const BAD_MASK: Self = Self(4, 8);
    pub const BAD_PREREQUISITE: Self = Self(4, 9);
    pub const DUPLICATE_FIELD: Self = Self(4, 10);
    pub const FLOW_FAILED: Self = Self(5, 0);
    pub const TABLE_FULL: Self = Self(5, 1);
    pub const BAD_TABLE: Self = Self(5, 2);
    pub const OVERLAP: Self = Self(5, 3);
    pub const BAD_FLOW_COMMAND: Self = Self(5, 6);
    pub const GROUP_EXISTS: Self = Self(6, 0);
    pub const INVALID_GROUP: Self = Self(6, 1);
    pub const OUT_OF_GROUPS: Self = Self(6, 3);
    pub const OUT_OF_BUCKETS: Self = Self(6, 4);
    pub const CHAINING_UNSUPPORTED: Self = Self(6, 5);
    pub const WATCH_UNSUPPORTED: Self = Self(6, 6);
    pub const UNKNOWN_GROUP: Self = Self(6, 8);
    pub const BAD_GROUP_TYPE: Self = Self(6, 10);
    pub const BAD_GROUP_COMMAND: Self = Self(6, 11);
    pub const BAD_BUCKET: Self = Self(6, 12);
    pub const BAD_WATCH: Self = Self(6, 13);
    pub const PORT_MOD_FORBIDDEN: Self = Self(7, 4);
    pub const BAD_CONFIG_FLAGS: Self = Self(10, 0);
    pub const STALE_ROLE: Self = Self(11, 0);
    pub const BAD_ROLE: Self = Self(11, 2);
    pub const METER_FAILED: Self = Self(12, 0);
    pub const METER_EXISTS: Self = Self(12, 1);
    pub const INVALID_METER: Self = Self(12, 2);
    pub const UNKNOWN_METER: Self = Self(12, 3);
    pub const BAD_METER_COMMAND: Self = Self(12, 4);
    pub const BAD_METER_FLAGS: Self = Self(12, 5);
    pub const BAD_RATE: Self = Self(12, 6);
    pub const BAD_BAND: Self = Self(12, 8);
    pub const OUT_OF_METERS: Self = Self(12, 10);
    pub const OUT_OF_BANDS: Self = Self(12, 11);
}

/// The bytes of an OpenFlow message that have not been read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, many: usize, short: Wrong) -> Result<&'a [u8], Wrong> {
        let (taken, left) = self.0.split_at_checked(many).ok_or(short)?;
        self.0 = left;
        Ok(taken)
    }

    /// Reads a number that is `many` bytes long, at most 16, from the message.
    pub fn number(&mut self, many: usize) -> Result<u128, Wrong> {
        let bytes = self.bytes(many, Wrong::BAD_LENGTH)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }

    pub fn u8(&mut self) -> Result<u8, Wrong> {
        self.number(1).map(|it| it as u8)
    }

    pub fn u16(&mut self) -> Result<u16, Wrong> {
        self.number(2).map(|it| it as u16)
    }

    pub fn u32(&mut self) -> Result<u32, Wrong> {
        self.number(4).map(|it| it as u32)
    }

    pub fn u64(&mut self) -> Result<u64, Wrong> {
        self.number(8).map(|it| it as u64)
    }

    pub fn skip(&mut self, many: usize) -> Result<(), Wrong> {
        self.bytes(many, Wrong::BAD_LENGTH).map(|_| ())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An OpenFlow message that is being written.
#[derive(Debug, Default)]
pub(super) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, number: u8) -> &mut Self {
        self.0.push(number);
        self
    }

    pub fn u16(&mut self, number: u16) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// Writes a number in `many` bytes.
    pub fn number(&mut self, number: u128, many: usize) -> &mut Self {
        self.0.extend(&number.to_be_bytes()[16 - many.min(16)..]);
        self
    }

    pub fn zeros(&mut self, many: usize) -> &mut Self {
        self.0.resize(self.0.len() + many, 0);
        self
    }

    /// Writes text into a field of `many` bytes, the last of which is 0; longer text is truncated.
    pub fn text(&mut self, text: &str, many: usize) -> &mut Self {
        let end = self.0.len() + many;
        self.0.extend(text.bytes().take(many.saturating_sub(1)));
        self.0.resize(end, 0);
        self
    }

    /// Writes zeros until the number of bytes since offset `start` is a multiple of 8.
    pub fn pad(&mut self, start: usize) {
        let length = self.0.len() - start;
        self.zeros(length.next_multiple_of(8) - length);
    }

    /// Writes the number of bytes since offset `start` into the 16 bits at offset `at`.
    pub fn length_at(&mut self, start: usize, at: usize) {
        let length = (self.0.len() - start) as u16;
        if let Some(place) = self.0.get_mut(at..at + 2) {
            place.copy_from_slice(&length.to_be_bytes());
        }
    }
}
