//! AES in counter mode at the speed of the processor's vectors. (FIPS 197; NIST SP 800-38A section 6.5.) No I/O.
//!
//! There is one type, [`CounterMode`]: a key of 16 or 32 bytes, which adds its stream to a text in place
//! ([`CounterMode::add_key_stream`]), from any block on. [`CounterMode::name`] says by which way.
//!
//! When it is made, it takes the fastest way that the processor has: a kernel (`kernel/`), written once and compiled
//! for each set of vector instructions, or the `aes` crate (`portable.rs`). Nonces, sessions and tags are not its
//! business: those are those of the function `aes` in `taut-function`, which calls it.
//!
//! The kernels are `unsafe`, as they call instructions that not every processor has. Tests hold each of them that this
//! machine can run to the `aes` crate.
//!
//! Begin with `counter_mode.rs`, then `kernel/mod.rs`.

mod counter_mode;
mod kernel;
mod portable;

pub use counter_mode::CounterMode;
