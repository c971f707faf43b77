//! Tests of the fit of access costs: it recovers the shares and latencies of simulated measurements.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::access::error::{LevelErrors, errors_by_level};
use crate::access::{STRUCTURE, Translation};
use crate::estimate::ErrorBasis;
use crate::model_file::{Model, Provenance, Run};

/// Returns costs of the published hierarchy with the given shares at sizes from 4 kB to 1 GB, with an error of at most
/// `noise`.
fn measured(
    shares: [f64; 3],
    noise: f64,
    translation: Option<Translation>,
    seed: u64,
) -> Vec<Point> {
    let mut truth = Hierarchy::published(1.0)
        .unwrap()
        .with_loader(10.0)
        .unwrap();
    for (level, share) in truth.levels.iter_mut().zip(shares) {
        level.share = share;
    }
    truth.translations.extend(translation);
    noisy(&truth, noise, seed)
}

/// Returns costs of a hierarchy at sizes from 4 kB to 1 GB, with an error of at most `noise`.
fn noisy(truth: &Hierarchy, noise: f64, seed: u64) -> Vec<Point> {
    let mut random = fastrand::Rng::with_seed(seed);
    let sizes = (24..=60).map(|half| 2f64.powf(f64::from(half) / 2.0));
    let point = |bytes: f64| Point {
        bytes,
        cycles: truth.cycles(bytes).unwrap() * (1.0 + noise * (2.0 * random.f64() - 1.0)),
        scatter: None,
    };
    sizes.map(point).collect()
}

#[test]
fn the_fit_recovers_fractions_and_latencies_far_from_the_ideal() {
    let points = measured([1.0, 0.85, 0.6], 0.02, None, 1);
    let nominal = Hierarchy::published(1.0).unwrap();
    let found = fit(&nominal, &points, 0.95).unwrap();
    for (share, truth) in found.shares.iter().zip([1.0, 0.85, 0.6]) {
        assert!((share.value - truth).abs() < 0.1, "{share:?}");
        assert!(
            share.low - 0.03 < truth && truth < share.high + 0.03,
            "{share:?}"
        );
    }
    for (latency, truth) in found.latencies.iter().zip([14.0, 22.0, 39.0, 260.0]) {
        assert!((latency.value / truth - 1.0).abs() < 0.05, "{latency:?}");
    }
    let ideal = nominal.with_loader(10.0).unwrap();
    let ideal = errors_by_level(&ideal, &points, ErrorBasis::HeldOut).unwrap();
    let worst = |errors: &[LevelErrors]| errors.iter().map(|l| l.errors.max).fold(0.0, f64::max);
    assert!(worst(&ideal) > 0.3, "{ideal:?}");
    assert!(worst(&found.errors) < 0.05, "{:?}", found.errors);
    let fresh = measured([1.0, 0.85, 0.6], 0.02, None, 2);
    let held_out = errors_by_level(&found.hierarchy, &fresh, ErrorBasis::HeldOut).unwrap();
    assert_eq!(held_out.len(), 4);
    assert!(worst(&held_out) < 0.06, "{held_out:?}");
}

#[test]
fn fitted_models_are_unchanged_after_conversion_to_toml_and_back() {
    let points = measured([1.0, 0.85, 0.6], 0.02, None, 1);
    let found = fit(&Hierarchy::published(1.0).unwrap(), &points, 0.95).unwrap();
    let runs = |points: Vec<Point>| points.into_iter().map(Run::from).collect::<Vec<Run>>();
    let fresh = runs(measured([1.0, 0.85, 0.6], 0.02, None, 2));
    let fitting = found.fitting(0.95);
    let model = fitting
        .fit(&runs(points), &fresh, &Provenance::default())
        .unwrap()
        .model;
    let text = toml::to_string(&model).unwrap();
    assert_eq!(toml::from_str::<Model>(&text).unwrap(), model);
    let at = model
        .predict(&[(STRUCTURE.to_owned(), 5e6)].into())
        .unwrap();
    assert!((at.estimate.value / found.hierarchy.cycles(5e6).unwrap() - 1.0).abs() < 1e-6);
    assert!(at.errors.unwrap().p95 < 0.05);
}

#[test]
fn superfluous_cache_fractions_are_not_fitted() {
    let points = measured([1.0; 3], 0.02, None, 3);
    let found = fit(&Hierarchy::published(1.0).unwrap(), &points, 0.95).unwrap();
    assert!(found.shares.is_empty(), "{:?}", found.shares);
    let points = measured([0.85; 3], 0.01, None, 4);
    let found = fit(&Hierarchy::published(1.0).unwrap(), &points, 0.95).unwrap();
    assert_eq!(found.shares.len(), 1, "{:?}", found.shares);
    assert!((found.shares[0].value - 0.85).abs() < 0.02);
}

#[test]
fn tlb_misses_are_fitted_only_if_the_points_contain_misses() {
    let buffer = Translation {
        entries: 1_024,
        page_bytes: 4_096.0,
        miss_cycles: 40.0,
    };
    let nominal = Hierarchy::published(1.0)
        .unwrap()
        .with_translation(buffer)
        .unwrap();
    let shown = fit(&nominal, &measured([1.0; 3], 0.01, Some(buffer), 5), 0.95).unwrap();
    assert_eq!(shown.latencies.len(), 5);
    assert!(
        (shown.latencies[4].value / 40.0 - 1.0).abs() < 0.2,
        "{:?}",
        shown.latencies
    );
    let absent = fit(&nominal, &measured([1.0; 3], 0.01, None, 6), 0.95).unwrap();
    assert_eq!(absent.latencies.len(), 4);
}

#[test]
fn points_that_do_not_distinguish_cache_levels_are_refused() {
    let nominal = Hierarchy::published(1.0).unwrap();
    let small: Vec<Point> = (1..20)
        .map(|k| Point {
            bytes: f64::from(k) * 512.0,
            cycles: 14.0,
            scatter: None,
        })
        .collect();
    assert!(matches!(
        fit(&nominal, &small, 0.95),
        Err(FitError::Singular { .. })
    ));
    let few = fit(&nominal, &small[..3], 0.95).unwrap_err().to_string();
    assert!(few.contains("3 runs are too few for 4 terms"), "{few}");
    let wrong = [Point {
        bytes: 1.0,
        cycles: f64::NAN,
        scatter: None,
    }];
    assert!(matches!(
        fit(&nominal, &wrong, 0.95),
        Err(FitError::Value(_))
    ));
}

#[test]
fn the_fit_recovers_the_steeper_steps_of_a_cyclic_walk() {
    let mut truth = Hierarchy::published(0.9).unwrap();
    truth
        .levels
        .iter_mut()
        .for_each(|level| level.steepness = 4.0);
    let points = noisy(&truth, 0.01, 8);
    let found = fit(&Hierarchy::published(1.0).unwrap(), &points, 0.95).unwrap();
    assert_eq!(found.steepness.len(), 1, "{:?}", found.steepness);
    let steepness = &found.steepness[0];
    assert!((steepness.value / 4.0 - 1.0).abs() < 0.15, "{steepness:?}");
    assert!(steepness.low < 4.0 && 4.0 < steepness.high, "{steepness:?}");
    let independent = fit(
        &Hierarchy::published(1.0).unwrap(),
        &measured([0.9; 3], 0.01, None, 9),
        0.95,
    );
    assert_eq!(independent.unwrap().steepness, []);
}

#[test]
fn a_last_level_cache_used_by_other_processes_is_omitted() {
    let mut truth = Hierarchy::published(1.0).unwrap();
    truth.levels.pop();
    let points = noisy(&truth, 0.01, 10);
    let found = fit(&Hierarchy::published(1.0).unwrap(), &points, 0.95).unwrap();
    for bytes in [16e3, 200e3, 4e6, 1e8] {
        let error = found.hierarchy.cycles(bytes).unwrap() / truth.cycles(bytes).unwrap() - 1.0;
        assert!(error.abs() < 0.03, "{bytes}: {error}");
    }
}

#[test]
fn known_memory_scatter_does_not_hide_the_steps_of_caches() {
    let truth = Hierarchy::published(0.7).unwrap();
    let mut random = fastrand::Rng::with_seed(12);
    let sizes = (24..=60).map(|half| 2f64.powf(f64::from(half) / 2.0));
    let points: Vec<Point> = sizes
        .map(|bytes| {
            let scatter = if bytes > 4e6 { 0.4 } else { 0.01 };
            Point {
                bytes,
                cycles: truth.cycles(bytes).unwrap() * (1.0 + scatter * (2.0 * random.f64() - 1.0)),
                scatter: Some(scatter / 3f64.sqrt()),
            }
        })
        .collect();
    let found = fit(&Hierarchy::published(1.0).unwrap(), &points, 0.95).unwrap();
    for errors in found
        .errors
        .iter()
        .filter(|of| of.level == "L1" || of.level == "L2")
    {
        assert!(errors.errors.max < 0.03, "{errors:?}");
    }
}
