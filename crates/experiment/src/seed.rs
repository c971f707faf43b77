//! Seeds of an experiment: one for each purpose, all derived from the seed in the experiment file.

use sha2::{Digest, Sha256};

/// Returns the seed for one purpose, derived from the experiment's seed.
pub(crate) fn seed_of(seed: u64, purpose: &str) -> u64 {
    let digest = Sha256::new()
        .chain_update(seed.to_le_bytes())
        .chain_update(purpose.as_bytes())
        .finalize();
    let mut low = [0; 8];
    low.copy_from_slice(&digest[..8]);
    // Scripts and spreadsheets read numbers up to 2^53 exactly.
    u64::from_le_bytes(low) >> 11
}
