//! AES in counter mode at the speed of the processor's vectors. (FIPS 197; NIST SP 800-38A section 6.5.) No I/O.

mod counter_mode;
mod kernel;
mod portable;

pub use counter_mode::CounterMode;
