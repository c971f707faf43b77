//! The body of the fuzz target for traffic files; `cargo test` runs the same body over seeded damage.

use taut_traffic::Traffic;

/// Reads a traffic file as `taut generate` does; checks that errors have one line.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // A trace names a file, and some system files are endless.
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
