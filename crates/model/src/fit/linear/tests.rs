//! Tests of least squares against the certified values of NIST's reference datasets, and by simulation.

#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

/// NIST Statistical Reference Datasets, Norris (linear, lower difficulty): y, x.
const NORRIS: [(f64, f64); 36] = [
    (0.1, 0.2),
    (338.8, 337.4),
    (118.1, 118.2),
    (888.0, 884.6),
    (9.2, 10.1),
    (228.1, 226.5),
    (668.5, 666.3),
    (998.5, 996.3),
    (449.1, 448.6),
    (778.9, 777.0),
    (559.2, 558.2),
    (0.3, 0.4),
    (0.1, 0.6),
    (778.1, 775.5),
    (668.8, 666.9),
    (339.3, 338.0),
    (448.9, 447.5),
    (10.8, 11.6),
    (557.7, 556.0),
    (228.3, 228.1),
    (998.0, 995.8),
    (888.8, 887.6),
    (119.6, 120.2),
    (0.3, 0.3),
    (0.6, 0.3),
    (557.6, 556.8),
    (339.3, 339.1),
    (888.0, 887.2),
    (998.5, 999.0),
    (778.9, 779.0),
    (10.2, 11.1),
    (117.6, 118.3),
    (228.9, 229.2),
    (668.4, 669.1),
    (449.2, 448.9),
    (0.2, 0.5),
];

/// NIST Statistical Reference Datasets, Longley (linear, higher difficulty): y and six columns.
const LONGLEY: [[f64; 7]; 16] = [
    [60323.0, 83.0, 234289.0, 2356.0, 1590.0, 107608.0, 1947.0],
    [61122.0, 88.5, 259426.0, 2325.0, 1456.0, 108632.0, 1948.0],
    [60171.0, 88.2, 258054.0, 3682.0, 1616.0, 109773.0, 1949.0],
    [61187.0, 89.5, 284599.0, 3351.0, 1650.0, 110929.0, 1950.0],
    [63221.0, 96.2, 328975.0, 2099.0, 3099.0, 112075.0, 1951.0],
    [63639.0, 98.1, 346999.0, 1932.0, 3594.0, 113270.0, 1952.0],
    [64989.0, 99.0, 365385.0, 1870.0, 3547.0, 115094.0, 1953.0],
    [63761.0, 100.0, 363112.0, 3578.0, 3350.0, 116219.0, 1954.0],
    [66019.0, 101.2, 397469.0, 2904.0, 3048.0, 117388.0, 1955.0],
    [67857.0, 104.6, 419180.0, 2822.0, 2857.0, 118734.0, 1956.0],
    [68169.0, 108.4, 442769.0, 2936.0, 2798.0, 120445.0, 1957.0],
    [66513.0, 110.8, 444546.0, 4681.0, 2637.0, 121950.0, 1958.0],
    [68655.0, 112.6, 482704.0, 3813.0, 2552.0, 123366.0, 1959.0],
    [69564.0, 114.2, 502601.0, 3931.0, 2514.0, 125368.0, 1960.0],
    [69331.0, 115.7, 518173.0, 4806.0, 2572.0, 127852.0, 1961.0],
    [70551.0, 116.9, 554894.0, 4007.0, 2827.0, 130081.0, 1962.0],
];

fn near(found: f64, certified: f64, share: f64) {
    assert!(
        (found / certified - 1.0).abs() < share,
        "{found} is not {certified}"
    );
}

fn norris() -> LinearFit {
    let rows: Vec<Vec<f64>> = NORRIS.iter().map(|(_, x)| vec![1.0, *x]).collect();
    let y: Vec<f64> = NORRIS.iter().map(|(y, _)| *y).collect();
    let design = Design::new(&["b0", "b1"], &rows, &y, Spread::Absolute).unwrap();
    least_squares(&design, 0.95).unwrap()
}

#[test]
fn the_norris_fit_agrees_with_certified_values() {
    let fit = norris();
    near(fit.coefficients[0].value, -0.262323073774029, 1e-10);
    near(fit.coefficients[1].value, 1.00211681802045, 1e-12);
    near(fit.coefficients[0].standard_error, 0.232818234301152, 1e-10);
    near(
        fit.coefficients[1].standard_error,
        0.429796848199937e-3,
        1e-10,
    );
    near(fit.residual_std, 0.884796396144373, 1e-10);
    near(fit.r_squared, 0.999993745883712, 1e-12);
}

#[test]
fn the_nearly_collinear_longley_fit_agrees_with_certified_values() {
    let rows: Vec<Vec<f64>> = LONGLEY
        .iter()
        .map(|row| [&[1.0], &row[1..]].concat())
        .collect();
    let y: Vec<f64> = LONGLEY.iter().map(|row| row[0]).collect();
    let names = ["b0", "b1", "b2", "b3", "b4", "b5", "b6"];
    let design = Design::new(&names, &rows, &y, Spread::Absolute).unwrap();
    let fit = least_squares(&design, 0.95).unwrap();
    let certified = [
        -3482258.63459582,
        15.0618722713733,
        -0.0358191792925910,
        -2.02022980381683,
        -1.03322686717359,
        -0.0511041056535807,
        1829.15146461355,
    ];
    for (found, certified) in fit.coefficients.iter().zip(certified) {
        near(found.value, certified, 1e-6);
    }
    near(fit.residual_std, 304.854073561965, 1e-8);
    near(fit.r_squared, 0.995479004577296, 1e-10);
}

#[test]
fn leave_one_out_errors_agree_with_refitting_without_each_run() {
    let one_out = |design: &Design, fit: &LinearFit, rows: &[Vec<f64>], y: &[f64]| {
        let pairs = (0..rows.len()).map(|out| {
            let keep = |i: &usize| *i != out;
            let others: Vec<Vec<f64>> = (0..rows.len())
                .filter(keep)
                .map(|i| rows[i].clone())
                .collect();
            let measured: Vec<f64> = (0..rows.len()).filter(keep).map(|i| y[i]).collect();
            let other = Design::new(&["a", "b"], &others, &measured, design.spread()).unwrap();
            let other = least_squares(&other, 0.95).unwrap();
            (other.predict(&rows[out]).unwrap().value, y[out])
        });
        let honest = Errors::of(ErrorBasis::LeaveOneOut, pairs).unwrap();
        let found = fit.leave_one_out.unwrap();
        near(found.median, honest.median, 1e-9);
        near(found.max, honest.max, 1e-9);
    };
    for spread in [Spread::Absolute, Spread::Relative] {
        let rows: Vec<Vec<f64>> = (1..12).map(|x| vec![1.0, f64::from(x)]).collect();
        let y: Vec<f64> = (1..12_u32).map(|x| f64::from(10 + 3 * x + x % 3)).collect();
        let design = Design::new(&["a", "b"], &rows, &y, spread).unwrap();
        let fit = least_squares(&design, 0.95).unwrap();
        one_out(&design, &fit, &rows, &y);
    }
}

#[test]
fn information_criteria_equal_twice_the_negative_log_likelihood_plus_penalty() {
    // The expected criteria are computed from Norris's certified residual sum of squares, 26.6173985294224.
    let criteria = norris().criteria.unwrap();
    let n = 36.0_f64;
    let minus_two_log = n * ((std::f64::consts::TAU * 26.6173985294224 / n).ln() + 1.0);
    near(criteria.aic, minus_two_log + 6.0, 1e-9);
    near(criteria.bic, minus_two_log + 3.0 * n.ln(), 1e-9);
    near(
        criteria.aicc.unwrap(),
        minus_two_log + 6.0 + 24.0 / 32.0,
        1e-9,
    );
}

#[test]
fn confidence_intervals_have_the_stated_coverage() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut normal = move || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
    for spread in [Spread::Absolute, Spread::Relative] {
        let (mut slope, mut new_run) = (0, 0);
        for _ in 0..1_000 {
            let mut measure = |x: f64| {
                let truth = 200.0 + 5.0 * x;
                match spread {
                    Spread::Absolute => truth + 4.0 * normal(),
                    Spread::Relative => truth * (1.0 + 0.02 * normal()),
                }
            };
            let rows: Vec<Vec<f64>> = (0..10).map(|i| vec![1.0, f64::from(i * 20)]).collect();
            let y: Vec<f64> = rows.iter().map(|row| measure(row[1])).collect();
            let design = Design::new(&["base", "slope"], &rows, &y, spread).unwrap();
            let fit = least_squares(&design, 0.9).unwrap();
            let c = &fit.coefficients[1];
            slope += u32::from(c.low <= 5.0 && 5.0 <= c.high);
            let (at, seen) = (fit.predict(&[1.0, 150.0]).unwrap(), measure(150.0));
            new_run += u32::from(at.low <= seen && seen <= at.high);
        }
        // 900 of the intervals are expected to cover the true value, with a standard deviation of 9.5.
        assert!((865..935).contains(&slope), "{spread:?}: {slope}");
        assert!((865..935).contains(&new_run), "{spread:?}: {new_run}");
    }
}

#[test]
fn an_underdetermined_or_singular_fit_is_refused() {
    let same = vec![vec![1.0, 2.0, 3.0]; 6];
    let design = Design::new(&["a", "b", "c"], &same, &[1.0; 6], Spread::Absolute).unwrap();
    let error = least_squares(&design, 0.95).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the runs do not distinguish a, b"),
        "{error}"
    );
    let zero = vec![vec![0.0]; 6];
    let design = Design::new(&["a"], &zero, &[1.0; 6], Spread::Absolute).unwrap();
    assert!(matches!(
        least_squares(&design, 0.95),
        Err(FitError::Singular { .. })
    ));
    let design = Design::new(
        &["a", "b"],
        &same[..1]
            .iter()
            .map(|r| r[..2].to_vec())
            .collect::<Vec<_>>(),
        &[1.0],
        Spread::Absolute,
    );
    assert!(matches!(
        least_squares(&design.unwrap(), 0.95),
        Err(FitError::TooFewRows { rows: 1, terms: 2 })
    ));
    let design = Design::new(
        &["a"],
        &[vec![1.0], vec![2.0]],
        &[1.0, 2.0],
        Spread::Absolute,
    )
    .unwrap();
    for confidence in [0.0, 1.0, f64::NAN] {
        assert!(matches!(
            least_squares(&design, confidence),
            Err(FitError::Value(_))
        ));
    }
}

#[test]
fn a_run_of_weight_three_counts_as_three_runs() {
    let (x, y) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.5, 5.0, 9.0, 9.5]);
    let design = |of: &[usize]| {
        let rows: Vec<Vec<f64>> = of.iter().map(|i| vec![1.0, x[*i]]).collect();
        let y: Vec<f64> = of.iter().map(|i| y[*i]).collect();
        Design::new(&["base", "slope"], &rows, &y, Spread::Relative).unwrap()
    };
    let repeated = least_squares(&design(&[0, 1, 1, 1, 2, 3, 4]), 0.95).unwrap();
    let weighted = design(&[0, 1, 2, 3, 4])
        .weighted(&[1.0, 3.0, 1.0, 1.0, 1.0])
        .unwrap();
    let weighted = least_squares(&weighted, 0.95).unwrap();
    for (a, b) in repeated.coefficients.iter().zip(&weighted.coefficients) {
        near(a.value, b.value, 1e-9);
    }
}

#[test]
fn a_perfect_fit_has_finite_information_criteria() {
    let rows: Vec<Vec<f64>> = (1..9).map(|x| vec![f64::from(x)]).collect();
    let y: Vec<f64> = (1..9).map(|x| 2.0 * f64::from(x)).collect();
    let design = Design::new(&["slope"], &rows, &y, Spread::Relative).unwrap();
    let fit = least_squares(&design, 0.95).unwrap();
    assert!(fit.criteria.unwrap().bic.is_finite());
    assert!(fit.in_sample.unwrap().max < 1e-12);
}

#[test]
fn fits_with_infinite_coefficients_are_refused() {
    let mut rows = vec![vec![0.0]; 11];
    rows.push(vec![1e-150]);
    let mut y = vec![0.0; 11];
    y.push(1e300);
    let design = Design::new(&["tiny"], &rows, &y, Spread::Absolute).unwrap();
    let refused = least_squares(&design, 0.95).unwrap_err().to_string();
    assert!(refused.contains("the coefficient of tiny"), "{refused}");
}

proptest! {
    #[test]
    fn a_fit_to_arbitrary_runs_is_finite_or_refused(
        rows in prop::collection::vec(prop::collection::vec(prop_oneof![
            Just(0.0), Just(1.0), Just(-1e300), Just(1e-300), -1e6..1e6_f64,
        ], 3), 0..12),
        y in prop::collection::vec(prop_oneof![Just(0.0), Just(1e300), 1e-3..1e9_f64], 12),
        relative in any::<bool>(),
    ) {
        let spread = if relative { Spread::Relative } else { Spread::Absolute };
        let y = &y[..rows.len()];
        for fit in [least_squares, crate::fit::robust] {
            let fitted = Design::new(&["a", "b", "c"], &rows, y, spread)
                .and_then(|design| fit(&design, 0.95));
            let Ok(fitted) = fitted else { continue };
            for c in &fitted.coefficients {
                prop_assert!(c.value.is_finite() && c.low <= c.value && c.value <= c.high, "{c:?}");
            }
            if let Ok(at) = fitted.predict(&[1.0, 2.0, 3.0]) {
                prop_assert!(at.low <= at.value && at.value <= at.high && at.high.is_finite());
            }
        }
    }
}
