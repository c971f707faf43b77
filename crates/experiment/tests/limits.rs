//! Tests that experiment files whose runs would exceed a machine's memory or time are refused before anything is run,
//! with the location and the limit.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use taut_experiment::{Changes, Experiment};

fn refusal(text: &str) -> String {
    let text = format!("title = 't'\n{text}");
    let read = Experiment::parse(&text, "e.toml", Path::new("/nowhere"), &Changes::default());
    read.map(|experiment| experiment.plan().len())
        .unwrap_err()
        .to_string()
}

#[test]
fn plans_too_large_to_run_are_refused_before_expansion() {
    let letters = ["a", "b", "c", "d", "e", "f"];
    let loops: String = letters
        .iter()
        .map(|name| format!("{name} = {{ from = 1, to = 10000, by = 1 }}\n"))
        .collect();
    let uses: String = letters
        .iter()
        .map(|name| format!("{{{{ {name} }}}}"))
        .collect();
    let step = format!("[[step]]\nrun = '{uses}'\n");
    let message = refusal(&format!("[loop]\n{loops}{step}"));
    assert!(message.contains("combinations"), "{message}");
    for (plan, part) in [
        ("repetitions = 1000000", "runs"),
        ("warm_up = 4000000000", "runs"),
        (
            "until = { metric = 'x', within = 0.1, at_most = 4000000000 }",
            "runs",
        ),
    ] {
        let message = refusal(&format!(
            "[plan]\n{plan}\n[loop]\na = [1, 2, 3]\n[[step]]\nrun = '{{{{ a }}}}'\n"
        ));
        assert!(
            message.contains(part) && message.contains("1000000"),
            "{plan}: {message}"
        );
    }
}

#[test]
fn ranges_with_too_many_values_are_refused() {
    for range in [
        "{ from = 0, to = 1e300, by = 1 }",
        "{ from = -1e308, to = 1e308, by = 1e-300 }",
    ] {
        let message = refusal(&format!(
            "[loop]\na = {range}\n[[step]]\nrun = '{{{{ a }}}}'\n"
        ));
        assert!(
            message.contains("the maximum for one loop is 100000"),
            "{message}"
        );
    }
}

#[test]
fn variable_expansions_beyond_the_size_or_depth_limit_are_refused() {
    // The text of each variable is twice that of the next one.
    let doubled: String = (0..40)
        .map(|n| format!("x{n} = '{{{{ x{} }}}}{{{{ x{} }}}}'\n", n + 1, n + 1))
        .collect();
    let message = refusal(&format!(
        "[variables]\n{doubled}x40 = 'x'\n[[step]]\nrun = '{{{{ x0 }}}}'\n"
    ));
    assert!(message.contains("longer than"), "{message}");
    // This chain of variables is too long for recursion on the stack.
    let chain: String = (0..5_000)
        .map(|n| format!("y{n} = '{{{{ y{} }}}}'\n", n + 1))
        .collect();
    let message = refusal(&format!(
        "[variables]\n{chain}y5000 = 'x'\n[[step]]\nrun = '{{{{ y0 }}}}'\n"
    ));
    assert!(message.contains("deep"), "{message}");
    // The template has nested loops.
    let turns = "{% for i in range(9999) %}".repeat(8) + "x" + &"{% endfor %}".repeat(8);
    let message = refusal(&format!("[[step]]\nrun = '{turns}'\n"));
    assert!(message.starts_with("e.toml:3:7: "), "{message}");
    // The variable has a long value in many combinations.
    let long = "x".repeat(100_000);
    let message = refusal(&format!(
        "[variables]\nl = '{long}'\n[loop]\na = {{ from = 1, to = 5000, by = 1 }}\n[[step]]\nrun = '{{{{ a }}}}{{{{ l }}}}'\n"
    ));
    assert!(message.contains("bytes"), "{message}");
}

#[test]
fn an_oversized_experiment_file_is_refused() {
    let message = refusal(&"# comment\n".repeat(1 << 20));
    assert!(message.contains("larger than"), "{message}");
}
