//! The body of the fuzz target for chain files; `cargo test` runs the same body over seeded damage.

use taut_engine::Chain;
use taut_functions::FUNCTIONS;

/// Reads a chain file as `taut forward` does, which creates its functions; checks that errors have one line.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // Functions may name files, and some system files are endless.
    if text.contains('/') && text.contains("file") {
        return;
    }
    match Chain::parse(text, "x.toml", FUNCTIONS) {
        Ok(chain) => drop(chain.check()),
        Err(e) => {
            let said = e.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said:?}");
        }
    }
}
