//! Manifests of synthetic results folders, for tests.

use crate::manifest::manifest;
use taut_bench::benchmark::Head;
use taut_results::Mode;

/// Returns a manifest without content.
pub(crate) fn head<F>(schema: u32, own: F) -> Head<F> {
    Head {
        manifest: manifest(schema),
        mode: Mode::Quick,
        seed: 1,
        repetitions: 3,
        trial_seconds: 0.1,
        tsc_hz: 2.6e9,
        tsc_error_ppm: 1.0,
        own,
    }
}
