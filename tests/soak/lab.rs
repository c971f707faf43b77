//! The service of a laboratory, killed a hundred times while it accepts reservations and runs experiments.

use super::share_of;
use crate::support::alone;
use crate::support::lab::kill_often;

const KILLS: u64 = 100;

#[test]
#[ignore = "minutes: ./run soak"]
fn a_hundred_kills_of_the_lab_service_lose_nothing() {
    let _turn = alone();
    kill_often(share_of(KILLS));
}
