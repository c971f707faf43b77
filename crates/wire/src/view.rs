//! Functions that split typed headers off a byte slice. Only this module checks lengths for views.

use zerocopy::{Immutable, KnownLayout, Ref, SplitByteSlice, Unaligned};

use crate::Error;

/// Splits a header of type `H` off the front of `bytes`; returns the header and the bytes after it. `what` names the
/// header in errors.
#[inline]
pub(crate) fn header<B, H>(bytes: B, what: &'static str) -> Result<(Ref<B, H>, B), Error>
where
    B: SplitByteSlice,
    H: KnownLayout + Immutable + Unaligned,
{
    let have = bytes.len();
    let need = size_of::<H>();
    Ref::from_prefix(bytes).map_err(|_| Error::Truncated { what, need, have })
}

/// Splits the first `need` bytes off `bytes`.
#[inline]
pub(crate) fn take<B: SplitByteSlice>(
    bytes: B,
    need: usize,
    what: &'static str,
) -> Result<(B, B), Error> {
    bytes.split_at(need).map_err(|bytes| Error::Truncated {
        what,
        need,
        have: bytes.len(),
    })
}

/// Returns the first `need` bytes of a buffer, for writing a header.
#[inline]
pub(crate) fn room<'a>(
    buffer: &'a mut [u8],
    need: usize,
    what: &'static str,
) -> Result<&'a mut [u8], Error> {
    let have = buffer.len();
    buffer
        .get_mut(..need)
        .ok_or(Error::Truncated { what, need, have })
}
