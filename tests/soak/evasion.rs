//! Many more attacks against an inspection than in `./run test`.

use super::share_of;
use crate::support::alone;
use crate::support::evasion::{Oracle, inspection, prove};

const ATTACKS: u64 = 100_000;

#[test]
#[ignore = "an hour: ./run soak"]
fn no_evasion_delivers_forbidden_content_to_a_receiver() {
    let _turn = alone();
    let Some(oracle) = Oracle::new(inspection) else {
        return;
    };
    // The seeds differ from those of `./run test`.
    prove(oracle, 1_000_000..1_000_000 + share_of(ATTACKS));
}
