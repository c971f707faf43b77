//! The classes of functions: how much of a packet a function touches, and thus whether it belongs in the kernel or in
//! user space. (Xiang et al., JSAC 2019, section III.)

/// The class of a function, in its [`crate::Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Input and output only: the function reads no byte of the packet.
    Elementary,
    /// The function reads headers, or makes one pass of simple steps over the packet. The cost is small, and has a
    /// bound that the kernel's verifier can prove.
    Basic,
    /// The function does much work for each byte or packet, or buffers packets. This is unsuitable for a program in the
    /// kernel, which may neither compute for long nor allocate.
    Advanced,
}

impl Class {
    /// Returns the name of the class.
    pub fn name(self) -> &'static str {
        match self {
            Self::Elementary => "elementary",
            Self::Basic => "basic",
            Self::Advanced => "advanced",
        }
    }

    /// Returns the definition of the class as text: a part of a sentence.
    pub fn means(self) -> &'static str {
        match self {
            Self::Elementary => "input and output only",
            Self::Basic => "headers, or one simple pass over the packet",
            Self::Advanced => "much work per byte or packet, or packets kept for later",
        }
    }
}
