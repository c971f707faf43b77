//! Names that counters get while the program runs, from code that others wrote.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Names that are kept; whatever comes beyond is counted under one.
const MOST: usize = 4096;
const OTHERS: &str = "others: more names than are kept";

/// The name, for as long as the program runs: a name takes memory once, however often it comes.
pub(crate) fn lasting(name: &str) -> &'static str {
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
    fn a_name_is_kept_once_and_there_is_an_end_of_them() {
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
