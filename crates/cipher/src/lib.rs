//! AES in counter mode at the speed of the processor's vectors. (FIPS 197; NIST SP 800-38A section 6.5.) No I/O.
//!
//! The only type is [`CounterMode`], a cipher with a key of 16 or 32 bytes. [`CounterMode::add_key_stream`] adds the
//! key stream to a text in place, starting with any block. [`CounterMode::name`] returns the implementation in use.
//!
//! A new key gets the fastest implementation for the processor: a kernel for its vector instructions (`kernel/`), or
//! the `aes` crate (`portable.rs`). Nonces, sessions and tags belong to the function `aes` in `taut-functions`, which
//! uses this crate.
//!
//! The kernels are `unsafe`, as they use instructions that not every processor has. Tests compare each kernel that this
//! machine supports with the `aes` crate.
//!
//! Begin with `counter_mode.rs`, then `kernel/mod.rs`.

mod counter_mode;
mod kernel;
mod portable;

pub use counter_mode::CounterMode;
