//! The types (atomics, locks) with which threads share state. They are the standard library's; in tests of every
//! interleaving (`./run miri`) they are loom's.

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, atomic};
