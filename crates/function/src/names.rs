//! The names of counters that external code, such as a script, creates at runtime.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The limit on the number of stored names; all further names are replaced by the name [`OTHERS`].
const MOST: usize = 4096;
const OTHERS: &str = "others: more names than are kept";

/// Returns a name as a text with a static lifetime. A name occupies memory only once, however often it is passed.
pub fn lasting(name: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    kept(
        &mut KNOWN.lock().unwrap_or_else(PoisonError::into_inner),
        name,
    )
}

fn kept(known: &mut BTreeSet<&'static str>, name: &str) -> &'static str {
    if let Some(name) = known.get(name) {
        return name;
    }
    if known.len() == MOST {
        return OTHERS;
    }
    let name: &'static str = Box::leak(name.into());
    known.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_stored_once_up_to_a_maximum_number() {
        let first = lasting("swapped");
        let again = String::from("swapped");
        assert!(std::ptr::eq(first, lasting(&again)));
        let mut known = BTreeSet::new();
        for number in 0..MOST {
            let name = number.to_string();
            assert_eq!(kept(&mut known, &name), name);
        }
        assert_eq!(kept(&mut known, "one more"), OTHERS);
        assert_eq!(kept(&mut known, "7"), "7");
    }
}
