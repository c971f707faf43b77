//! What the fuzz target of traffic files does with its bytes; `cargo test` runs the same over seeded damage.

use taut_traffic::Traffic;

/// A traffic file: read as `taut generate` reads it; what is wrong is said on one line.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Names a file, and those of a system can be without end.
    if text.contains("trace") {
        return;
    }
    match Traffic::parse(text, "x.toml") {
        Ok(traffic) => {
            let rates = traffic.rates_pps(1e6);
            for (stream, rate) in traffic.streams().iter().zip(rates) {
                assert!(rate.is_finite() && rate > 0.0, "{rate} packets a second");
                let average = stream.sizes().average_bytes();
                assert!((64.0..1e5).contains(&average), "{average} bytes");
            }
            assert!(traffic.has_own_rates() || traffic.average_bytes() > 63.9);
        }
        Err(e) => {
            let said = e.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said:?}");
        }
    }
}
