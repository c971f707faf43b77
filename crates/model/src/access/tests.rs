//! Tests of the access model against Table 4.2, and of the costs of structures that share caches.

#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

const KIB: f64 = 1024.0;
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

#[test]
fn each_level_costs_the_cycles_published_in_table_4_2() {
    let ideal = Hierarchy::published(1.0).unwrap();
    assert_eq!(ideal.cycles(4.0 * KIB).unwrap(), 4.0);
    assert_eq!(ideal.cycles(32.0 * KIB).unwrap(), 4.0);
    // An eighth of 256 kB fits into L1.
    assert_eq!(
        ideal.cycles(256.0 * KIB).unwrap(),
        4.0 / 8.0 + 12.0 * 7.0 / 8.0
    );
    let memory = ideal.cycles(8.0 * GIB).unwrap();
    assert!((memory / 250.0 - 1.0).abs() < 0.001, "{memory}");
}

#[test]
fn an_exclusive_last_level_adds_its_full_size() {
    // Gallenmüller 2021, section 4.1.3: an inclusive cache's effective size is its own size minus the sizes of the
    // caches before it.
    let inclusive = Hierarchy::published(1.0).unwrap();
    let exclusive = Hierarchy {
        inclusion: Inclusion::Exclusive,
        ..inclusive.clone()
    };
    let bytes = 8.0 * KIB * KIB + 288.0 * KIB;
    assert!(inclusive.cycles(bytes).unwrap() > 29.0);
    let held = exclusive.cycles(bytes).unwrap();
    let without_memory = (32.0 * 4.0 + 256.0 * 12.0 + 8_192.0 * 29.0) / 8_480.0;
    assert!((held - without_memory).abs() < 1e-9);
}

#[test]
fn tlb_misses_cost_cycles_beyond_the_reach_of_the_tlb() {
    let small_pages = Translation {
        entries: 512,
        page_bytes: 4.0 * KIB,
        miss_cycles: 30.0,
    };
    let large_pages = Translation {
        page_bytes: 2.0 * KIB * KIB,
        ..small_pages
    };
    let ideal = Hierarchy::published(1.0).unwrap();
    let with = |translation| ideal.clone().with_translation(translation).unwrap();
    let bytes = 4.0 * KIB * KIB;
    let more = with(small_pages).cycles(bytes).unwrap() - ideal.cycles(bytes).unwrap();
    assert!(
        (more - 15.0).abs() < 1e-9,
        "half of the pages are known: {more}"
    );
    assert_eq!(with(large_pages).cycles(bytes), ideal.cycles(bytes));
}

#[test]
fn sharing_does_not_change_the_cost_of_a_single_structure() {
    let published = Hierarchy::published(PUBLISHED_SHARE).unwrap();
    for bytes in [4.0 * KIB, 100.0 * KIB, 3e6, 1e9] {
        let alone = published
            .cycles_shared(&[Structure {
                bytes,
                accesses: 7.0,
            }])
            .unwrap();
        let plain = published.cycles(bytes).unwrap();
        assert!(
            (alone[0] / plain - 1.0).abs() < 1e-9,
            "{bytes}: {alone:?} {plain}"
        );
    }
}

#[test]
fn small_busy_structures_stay_cached_next_to_large_structures() {
    let ideal = Hierarchy::published(1.0).unwrap();
    let busy = Structure {
        bytes: 4.0 * KIB,
        accesses: 100.0,
    };
    let large = Structure {
        bytes: GIB,
        accesses: 1.0,
    };
    let both = ideal.cycles_shared(&[busy, large]).unwrap();
    assert!(both[0] < 4.1, "{both:?}");
    assert!(both[1] > 240.0, "{both:?}");
    let halves = Structure {
        bytes: 4e6,
        accesses: 5.0,
    };
    let halves = ideal.cycles_shared(&[halves, halves]).unwrap();
    assert!(
        (halves[0] - ideal.cycles(8e6).unwrap()).abs() < 1e-6,
        "{halves:?}"
    );
}

#[test]
fn invalid_memory_hierarchies_are_refused() {
    assert!(Hierarchy::published(f64::NAN).is_err());
    let mut levels = Hierarchy::published(1.0).unwrap().levels;
    levels.swap(0, 1);
    assert!(Hierarchy::new(levels, 250.0, Inclusion::Inclusive).is_err());
    let ideal = Hierarchy::published(1.0).unwrap();
    assert!(ideal.cycles(0.0).is_err());
    assert!(
        ideal
            .cycles_shared(&[Structure {
                bytes: 1.0,
                accesses: -1.0
            }])
            .is_err()
    );
    assert!(ideal.with_loader(-1.0).is_err());
}

proptest! {
    #[test]
    fn accesses_to_a_larger_structure_never_cost_fewer_cycles(bytes in 1.0..1e10_f64, more in 1.0..10.0_f64) {
        let published = Hierarchy::published(PUBLISHED_SHARE).unwrap();
        let (small, large) = (published.cycles(bytes).unwrap(), published.cycles(bytes * more).unwrap());
        prop_assert!(small <= large * (1.0 + 1e-12));
        prop_assert!((4.0..=250.0).contains(&small));
    }
}
