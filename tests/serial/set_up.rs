//! The script that prepares machines and counts tests: `./run`.

use crate::support::program::run;
use crate::support::scratch;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs `script` with the functions `names` of `./run` defined, and with `folder` first on the search path. Returns its
/// standard output.
fn with_functions(names: &[&str], folder: &Path, script: &str) -> String {
    let whole = fs::read_to_string("run").unwrap();
    let mut text = "set -eu\n".to_string();
    for name in names {
        let start = whole.find(&format!("\n{name}() {{\n")).unwrap();
        let end = whole[start..].find("\n}\n").unwrap() + start + 3;
        text += &whole[start..end];
    }
    text += script;
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let finished = run(Command::new("sh")
        .args(["-c", &text])
        .current_dir(folder)
        .env("PATH", path)
        .env_remove("CI"));
    finished.success().stdout
}

/// Writes a substitute for `dpkg-query` that lists the packages in `states`, each with its state.
fn knows(folder: &Path, states: &[(&str, &str)]) {
    let program = folder.join("dpkg-query");
    let lines: String = states
        .iter()
        .map(|(state, package)| {
            format!("printf '%s' \"$format\" | sed 's/[$]{{db:Status-Status}}/{state}/; s/[$]{{Package}}/{package}/'\n")
        })
        .collect();
    let text = format!("#!/bin/sh\nformat=$3\n{lines}");
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn packages_known_to_dpkg_but_not_installed_count_as_missing() {
    let folder = scratch();
    knows(
        folder.path(),
        &[
            ("not-installed", "openssh-server"),
            ("installed", "openssh-client"),
            ("config-files", "munge"),
            ("half-installed", "strace"),
            ("not-installed", "librte-net-memif23"),
            ("installed", "librte-net-af-xdp23"),
        ],
    );
    let script = "missing_packages 'openssh-server openssh-client
        munge strace librte-net-memif* librte-net-af-xdp* unheard-of'";
    let missing = with_functions(&["missing_packages"], folder.path(), script);
    let missing: Vec<_> = missing.split_whitespace().collect();
    let wanted = [
        "openssh-server",
        "munge",
        "strace",
        "librte-net-memif*",
        "unheard-of",
    ];
    assert_eq!(missing, wanted);
}

const OUTPUT: &str = "
running 4 tests
test ssh::first ... ok
test ssh::second ... ok
test ssh::third ... ok
test ssh::fourth ... ok

successes:

---- ssh::first stdout ----
told nobody
skipped: needs ssh and sshd
skipped: needs the same again

---- ssh::third stdout ----
skipped: the kernel says no

---- ssh::fourth stdout ----
repeated: attempt 1 of 2, as others ran for 20ms of 1.0s: late
repeated: attempt 2 of 2, as others ran for 30ms of 1.0s: late
not measured: machine busy in each of 2 attempts

successes:
    ssh::first
    ssh::second
    ssh::third
    ssh::fourth

test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

skipped: needs mdbook
";

fn counted(environment: &str) -> (String, bool) {
    let folder = scratch();
    fs::write(folder.path().join("output"), OUTPUT).unwrap();
    fs::write(
        folder.path().join("skips"),
        "# a comment\nssh and sshd\tno server here\nthe same again\tlikewise\nthe kernel\t\nmdbook\tno network\n",
    )
    .unwrap();
    let script = format!(
        "SKIPS_IN_CI=skips\n{environment}count_tests <output && echo good || echo 'failed status'"
    );
    let names = ["in_ci", "may_be_skipped", "count_tests"];
    let shown = with_functions(&names, folder.path(), &script);
    let good = shown.ends_with("good\n");
    (shown, good)
}

#[test]
fn skipped_tests_are_not_counted_as_passed() {
    let (shown, good) = counted("");
    assert!(good, "{shown}");
    // Only one of the four tests that "passed" tested something; the list excludes lines that are not tests.
    assert!(
        shown.contains("\ntests: 1 passed, 0 failed, 1 ignored, 3 skipped\n"),
        "{shown}"
    );
    assert!(
        shown.contains("skipped: needs ssh and sshd (ssh::first)"),
        "{shown}"
    );
    assert!(!shown.contains("told nobody"), "{shown}");
}

#[test]
fn a_test_skipped_on_a_busy_machine_is_counted_separately() {
    let (shown, _) = counted("");
    for line in [
        "repeated: attempt 2 of 2, as others ran for 30ms of 1.0s: late (ssh::fourth)\n",
        "not measured: machine busy in each of 2 attempts (ssh::fourth)\n",
        "\nmachine busy: 1 tests not measured, 2 attempts repeated\n",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn a_skip_without_a_reason_fails_in_continuous_integration() {
    let (shown, good) = counted("CI=true\n");
    assert!(!good, "{shown}");
    let refused: Vec<_> = shown
        .lines()
        .filter(|line| line.starts_with("run: not to be skipped"))
        .collect();
    // A line without a reason in the list of allowed skips allows no skip.
    assert_eq!(refused.len(), 1, "{shown}");
    assert!(
        refused[0].contains("the kernel says no (ssh::third)"),
        "{shown}"
    );
}

#[test]
fn set_up_continues_if_no_browser_package_exists() {
    let folder = scratch();
    let said = |knows: bool| {
        let apt = folder.path().join("apt-cache");
        fs::write(&apt, format!("#!/bin/sh\n{knows}\n")).unwrap();
        fs::set_permissions(&apt, fs::Permissions::from_mode(0o755)).unwrap();
        let script = "BROWSER_PACKAGES=chromium
            have() { [ \"$1\" = apt-cache ]; }
            say() { echo \"said $*\"; }
            set_up_packages() { echo \"installed $*\"; }
            set_up_browser
            echo done";
        with_functions(&["set_up_browser"], folder.path(), script)
    };
    let unknown = said(false);
    assert!(unknown.starts_with("said missing: chromium"), "{unknown}");
    assert!(unknown.ends_with("done\n"), "{unknown}");
    assert!(said(true).starts_with("installed chromium\n"));
}

#[test]
fn without_zig_packages_are_built_without_the_wheel() {
    let folder = scratch();
    let package = folder.path().join("packaging/package");
    fs::create_dir(package.parent().unwrap()).unwrap();
    fs::write(&package, "#!/bin/sh\necho \"made $1\"\n").unwrap();
    fs::set_permissions(&package, fs::Permissions::from_mode(0o755)).unwrap();
    let script = "target=$PWD/target features= ZIGLANG=1
        have() { [ \"$1\" = dpkg-deb ]; }
        say() { echo \"said $*\"; }
        cargo() { echo \"cargo $*\"; }
        build_static() { static=taut; }
        make_packages";
    let said = with_functions(&["make_packages", "set_up_zig"], folder.path(), script);
    assert!(
        said.starts_with("said left out: the wheel, which takes python3"),
        "{said}"
    );
    for line in ["cargo build --release", "made deb", "made archive"] {
        assert!(said.lines().any(|it| it.trim() == line), "{line}: {said}");
    }
}
