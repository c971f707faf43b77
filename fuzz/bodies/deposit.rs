//! Replies with arbitrary bytes: of archives and forges to deposits, and of time daemons to queries about a clock.

use taut_experiment::publish::deposit::{parse_bodies, parse_reply};

/// Reads bytes as each kind of reply.
pub fn reply(bytes: &[u8]) {
    if let Some(reply) = parse_reply(bytes) {
        assert!(reply.status >= 200 && reply.body.len() < bytes.len());
        parse_bodies(&reply.body);
    }
    parse_bodies(bytes);
    for reading in taut_experiment::parse_readings(&String::from_utf8_lossy(bytes)) {
        assert!(
            reading.is_none_or(|it| it.bound_ns.is_finite() && it.bound_ns >= it.offset_ns.abs())
        );
    }
}
