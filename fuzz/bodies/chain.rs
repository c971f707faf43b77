//! What the fuzz target of chain files does with its bytes; `cargo test` runs the same over seeded damage.

use taut_engine::Chain;

/// A chain file: read as `taut forward` reads it, which makes its functions; what is wrong is said on one line.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Functions may name files, and those of a system can be without end.
    if text.contains('/') && text.contains("file") {
        return;
    }
    match Chain::parse(text, "x.toml") {
        Ok(chain) => drop(chain.check()),
        Err(e) => {
            let said = e.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said:?}");
        }
    }
}
