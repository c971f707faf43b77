//! Named counters, which one thread increases and other threads read.

/// Defines an enumeration of counters, their names, and a type with their values.
macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident: $text:literal),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(in super::super) enum Counted { $($(#[$doc])* $name),* }

        const NAMES: &[&str] = &[$($text),*];

        #[derive(Debug, Default)]
        pub(in super::super) struct Counts([std::sync::atomic::AtomicU64; NAMES.len()]);

        impl Counts {
            pub fn add(&self, what: Counted, count: u64) {
                self.0[what as usize].fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            }

            pub fn set(&self, what: Counted, count: usize) {
                self.0[what as usize].store(count as u64, std::sync::atomic::Ordering::Relaxed);
            }

            /// Returns the counts by name.
            pub fn read(&self) -> Vec<(&'static str, u64)> {
                let counts = self.0.iter();
                let counts = counts.map(|count| count.load(std::sync::atomic::Ordering::Relaxed));
                NAMES.iter().copied().zip(counts).collect()
            }
        }
    };
}

pub(super) use counted;
