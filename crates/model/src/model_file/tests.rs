//! Tests of fitting, writing, reading and evaluating models.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::resource::shapes;

fn variables(load: f64, bytes: f64, batch: f64) -> Variables {
    [
        ("load_cycles", load),
        ("frame_bytes", bytes),
        ("batch", batch),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Returns runs over loads, sizes and batches that cost `110 + load + 0.2 bytes + 400 / batch` cycles, with an error of
/// at most 1 %.
fn runs(seed: u64) -> Vec<Run> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut runs = Vec::new();
    for load in [0.0, 100.0, 350.0, 1_000.0, 3_000.0, 10_000.0] {
        for bytes in [64.0, 256.0, 1_024.0, 1_518.0] {
            for batch in [1.0, 8.0, 32.0, 256.0] {
                let cycles = 110.0 + load + 0.2 * bytes + 400.0 / batch;
                runs.push(Run {
                    variables: variables(load, bytes, batch),
                    response: cycles * (0.99 + 0.02 * random.f64()),
                });
            }
        }
    }
    random.shuffle(&mut runs);
    runs
}

fn variable(name: &str, unit: &str) -> Variable {
    Variable {
        name: name.to_owned(),
        unit: unit.to_owned(),
    }
}

fn fitting() -> Fitting {
    Fitting {
        kind: Kind::Resource,
        response: variable("cycles", "cycles/packet"),
        variables: vec![
            variable("load_cycles", "cycles"),
            variable("frame_bytes", "bytes"),
            variable("batch", "packets"),
        ],
        sets: shapes(),
        method: Method::LeastSquares,
        spread: Spread::Relative,
        confidence: 0.95,
    }
}

fn fitted() -> Fitted {
    let from = Provenance {
        date: "2026-01-31".to_owned(),
        data: vec![Source {
            name: "io".to_owned(),
            sha256: "0".repeat(64),
            count: 48,
        }],
        machine: [("cpu".to_owned(), "a processor".to_owned())].into(),
    };
    let runs = runs(3);
    fitting().fit(&runs[..48], &runs[48..], &from).unwrap()
}

#[test]
fn a_model_of_half_the_runs_predicts_the_other_half() {
    let fitted = fitted();
    let file = fitted.model.file();
    assert_eq!(fitted.tried.len(), 4);
    assert_eq!(
        file.terms.len(),
        4,
        "bytes and batches were found to belong"
    );
    for (term, truth) in file.terms.iter().zip([110.0, 1.0, 0.2, 400.0]) {
        let found = &term.coefficient;
        assert!(
            found.low - 0.02 * truth < truth && truth < found.high + 0.02 * truth,
            "{found:?}"
        );
    }
    let errors = fitted.model.errors().unwrap();
    assert_eq!((errors.basis, errors.count), (ErrorBasis::HeldOut, 48));
    assert!(errors.p95 < 0.012, "{errors:?}");
}

#[test]
fn robust_fits_yield_accurate_models_despite_an_outlier() {
    let mut robust = fitting();
    robust.method = Method::Robust;
    let mut runs = runs(4);
    runs[5].response *= 30.0;
    let found = robust
        .fit(&runs[..48], &runs[48..], &Provenance::default())
        .unwrap();
    assert!(found.model.errors().unwrap().p95 < 0.02);
    assert_eq!(found.model.file().criteria, None);
}

#[test]
fn a_model_is_unchanged_after_conversion_to_toml_and_back() {
    let model = fitted().model;
    let text = toml::to_string(&model).unwrap();
    let again: Model = toml::from_str(&text).unwrap();
    assert_eq!(again, model);
    assert!(text.contains("unit = \"cycles/byte\""), "{text}");
}

#[test]
fn a_prediction_has_an_interval_and_reports_extrapolation() {
    let model = fitted().model;
    let inside = model.predict(&variables(500.0, 64.0, 32.0)).unwrap();
    assert!(
        (inside.estimate.value / 635.3 - 1.0).abs() < 0.01,
        "{inside:?}"
    );
    assert!(
        inside.estimate.low < inside.estimate.value && inside.estimate.value < inside.estimate.high
    );
    assert_eq!(
        (inside.unit.as_str(), inside.outside.len()),
        ("cycles/packet", 0)
    );
    let far = model.predict(&variables(50_000.0, 64.0, 32.0)).unwrap();
    assert_eq!(far.outside.len(), 1);
    assert_eq!(
        (far.outside[0].variable.as_str(), far.outside[0].max),
        ("load_cycles", 10_000.0)
    );
}

#[test]
fn missing_and_unknown_variables_of_a_prediction_are_refused() {
    let model = fitted().model;
    let mut asked = variables(500.0, 64.0, 32.0);
    asked.remove("batch");
    assert_eq!(
        model.predict(&asked),
        Err(ModelError::Missing("batch".to_owned()))
    );
    asked.insert("bacth".to_owned(), 1.0);
    let error = model.predict(&asked).unwrap_err().to_string();
    assert!(error.starts_with("unknown variable `bacth`"), "{error}");
    let error = model.predict(&variables(500.0, 64.0, 0.0)).unwrap_err();
    assert!(matches!(error, ModelError::NoValue { .. }));
    assert!(model.predict(&variables(f64::NAN, 64.0, 1.0)).is_err());
}

#[test]
fn inconsistent_model_files_cause_a_one_line_error() {
    let right: ModelFile = fitted().model.into();
    let wrong: [fn(&mut ModelFile); 7] = [
        |file| file.schema = 99,
        |file| file.terms.clear(),
        |file| file.covariance[0].push(0.0),
        |file| file.residual_std = f64::NAN,
        |file| file.ranges.clear(),
        |file| file.data[0].sha256 = "short".to_owned(),
        |file| file.degrees_of_freedom = 0,
    ];
    for spoil in wrong {
        let mut file = right.clone();
        spoil(&mut file);
        let error = Model::try_from(file).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
    }
    let text = toml::to_string(&right).unwrap();
    assert!(toml::from_str::<Model>(&text.replace("schema = 1", "schema = 1\nnew = 2")).is_err());
}

#[test]
fn too_few_or_identical_runs_for_the_terms_are_refused() {
    let few = &runs(5)[..3];
    let error = fitting()
        .fit(few, &[], &Provenance::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("3 runs are too few for 2 terms"), "{error}");
    let same: Vec<Run> = vec![few[0].clone(); 12];
    let error = fitting()
        .fit(&same, &[], &Provenance::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("do not distinguish io, load"), "{error}");
}
