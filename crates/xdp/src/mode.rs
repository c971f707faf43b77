//! The mode of an XDP program on an interface.

use std::fmt;

/// The stage of packet reception in the kernel at which an XDP program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In the interface's driver, before the kernel makes its own packet structure.
    Native,
    /// After the driver; this mode works for every driver, and is slower.
    Generic,
}

impl Mode {
    /// Returns the modes to try, in order, for a value of the option `mode`. Without a value, the native mode comes
    /// first.
    ///
    /// # Errors
    /// The error lists the valid values.
    pub fn wanted(option: Option<&str>) -> Result<&'static [Self], &'static str> {
        match option {
            None => Ok(&[Self::Native, Self::Generic]),
            Some("native") => Ok(&[Self::Native]),
            Some("generic") => Ok(&[Self::Generic]),
            Some(_) => Err("mode: expected native or generic"),
        }
    }

    /// Returns the flag `XDP_FLAGS_..._MODE` of linux/if_link.h.
    #[cfg(feature = "xdp")]
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}
