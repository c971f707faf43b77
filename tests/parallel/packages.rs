//! Packages that `./run package` builds from the program under test: their contents, and the Debian package in a root
//! file system of its own.

use crate::support::program::{Finished, PATIENCE, Program, run};
use crate::support::{is_installed, is_root, json, names, scratch};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const TAUT: &str = env!("CARGO_BIN_EXE_taut");
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The folder with links to the units that the administrator has enabled.
const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants";

/// Runs `packaging/package` with the given arguments, without compression, which would take most of the time.
#[track_caller]
fn package(kind: &str, from: &str, to: &Path) -> Finished {
    let mut command = Command::new("packaging/package");
    command.args([kind, from]).arg(to);
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    command.env("RPM_PAYLOAD", "w.ufdio");
    Program::start(&mut command)
        .finish_within(2 * PATIENCE)
        .success()
}

/// Reports whether the Debian package can be built; else prints why the test is skipped.
fn debian() -> bool {
    let is = is_installed("dpkg-deb");
    if !is {
        println!("skipped: needs dpkg-deb (package dpkg)");
    }
    is
}

#[track_caller]
fn make_deb(folder: &Path) -> PathBuf {
    make("deb", TAUT, folder, &format!("taut_{VERSION}_"))
}

/// Makes a package and returns its path; the name of the file has to begin with `prefix`.
#[track_caller]
fn make(kind: &str, program: &str, folder: &Path, prefix: &str) -> PathBuf {
    package(kind, program, folder);
    let names: Vec<String> = names(folder).into_iter().collect();
    let [name] = names.as_slice() else {
        panic!("not one package: {names:?}")
    };
    assert!(name.starts_with(prefix), "{name}");
    folder.join(name)
}

#[track_caller]
fn dpkg_deb(option: &str, deb: &Path, rest: &[&str]) -> String {
    run(Command::new("dpkg-deb").arg(option).arg(deb).args(rest))
        .success()
        .stdout
}

#[test]
fn a_debian_package_contains_all_of_taut_and_is_reproducible() {
    if !debian() {
        return;
    }
    let folder = scratch();
    let deb = make_deb(&folder.path().join("one"));
    let again = make_deb(&folder.path().join("two"));
    assert!(
        fs::read(&deb).unwrap() == fs::read(&again).unwrap(),
        "two packages of one program"
    );

    let listing = dpkg_deb("--contents", &deb, &[]);
    for line in listing.lines() {
        // The words are: type and rights, owner, size, date, time, name.
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[1], "root/root", "{line}");
        let rights = words[0].as_bytes();
        // Symbolic links are writable by all users, which has no effect.
        let is_link = rights[0] == b'l';
        assert!(
            is_link || (rights[5] != b'w' && rights[8] != b'w'),
            "{line}"
        );
    }
    for wanted in [
        "./usr/bin/taut",
        "./usr/share/man/man1/taut.1.gz",
        "./usr/share/man/man1/taut-bench-rfc2544.1.gz",
        "./usr/share/bash-completion/completions/taut",
        "./usr/share/zsh/vendor-completions/_taut",
        "./usr/share/fish/vendor_completions.d/taut.fish",
        "./usr/share/taut/experiments/demo.toml",
        "./usr/share/taut/examples/lua/l3_load_latency.lua",
        "./usr/share/taut/examples/monitoring/grafana-dashboard.json",
        "./usr/share/taut/examples/monitoring/taut-rules.yml",
        "./usr/include/taut_function.h",
        "./usr/share/doc/taut/copyright",
        "./usr/share/doc/taut/changelog.gz",
        "./usr/share/doc/taut/README.md",
        "./usr/share/doc/taut/docs/reference/lua.md",
        "./usr/share/doc/taut/docs/how-to/install-taut.md",
        "./usr/share/doc/taut/examples -> ../../taut/examples",
        "./usr/lib/systemd/system/taut-forward@.service",
        "./usr/lib/systemd/system/taut-chain@.service",
        "./usr/lib/systemd/system/taut-capture@.service",
        "./usr/lib/systemd/system/taut-serve.service",
        "./etc/taut/",
    ] {
        assert!(
            listing
                .lines()
                .any(|it| it.ends_with(&format!(" {wanted}"))),
            "no {wanted}: {listing}"
        );
    }
    let field = |name: &str| dpkg_deb("--field", &deb, &[name]).trim().to_string();
    assert_eq!(field("Version"), VERSION);
    assert!(field("Depends").contains("libc6"), "{}", field("Depends"));
    assert!(field("Installed-Size").parse::<u64>().unwrap() > 1000);

    let root = folder.path().join("root");
    run(Command::new("dpkg-deb")
        .arg("--raw-extract")
        .args([&deb, &root]))
    .success();
    let page = root.join("usr/share/doc/taut/docs/reference/command/forward.md");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("\n| `--in-kernel` |"), "{page}");
    let sums = fs::read(root.join("DEBIAN/md5sums")).unwrap();
    assert!(!sums.is_empty());
    run(Command::new("md5sum")
        .args(["--check", "--quiet", "DEBIAN/md5sums"])
        .current_dir(&root))
    .success();
    units_are_what_systemd_knows(&root, folder.path());
}

/// Verifies with systemd the units of a package, with the program under test in place of the installed one.
fn units_are_what_systemd_knows(root: &Path, folder: &Path) {
    if !is_installed("systemd-analyze") {
        return println!("skipped: needs systemd-analyze (package systemd)");
    }
    const RIGHTS: &str = "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_NICE CAP_IPC_LOCK CAP_BPF CAP_PERFMON\n";
    const MEMORY: &str = "LimitMEMLOCK=infinity\n";
    const SOCKETS: &str = "RuntimeDirectory=taut\n";
    const CHAIN: &str = "/etc/taut/%i.toml\n";
    for (unit, own) in [
        ("taut-forward@", [RIGHTS, MEMORY, SOCKETS, CHAIN]),
        ("taut-chain@", [RIGHTS, MEMORY, SOCKETS, CHAIN]),
        (
            "taut-capture@",
            [RIGHTS, MEMORY, SOCKETS, "/etc/taut/capture-%i.conf\n"],
        ),
        (
            "taut-serve",
            [
                "CapabilityBoundingSet=\n",
                "DynamicUser=yes\n",
                "PrivateDevices=yes\n",
                "/etc/taut/serve.conf\n",
            ],
        ),
    ] {
        let text = fs::read_to_string(root.join(format!("usr/lib/systemd/system/{unit}.service")))
            .unwrap();
        assert!(text.contains("ExecStart=/usr/bin/taut "), "{text}");
        let of_all = [
            "NoNewPrivileges=yes\n",
            "ProtectSystem=strict\n",
            "PrivateTmp=yes\n",
            "After=network-online.target\n",
        ];
        for promised in of_all.into_iter().chain(own) {
            assert!(text.contains(promised), "{promised}: {text}");
        }
        let file = folder.join(format!("{unit}.service"));
        fs::write(&file, text.replace("/usr/bin/taut", TAUT)).unwrap();
        let instance = folder.join(match unit.ends_with('@') {
            true => format!("{unit}edge.service"),
            false => format!("verified-{unit}.service"),
        });
        fs::copy(&file, &instance).unwrap();
        let mut command = Command::new("systemd-analyze");
        let verified = run(command.args(["verify", "--man=no"]).arg(&instance));
        assert_eq!(verified.code(), Some(0), "{verified:?}");
        // Unknown names in units cause only warnings, so the test checks that there are none about taut.
        let of_ours = verified.stderr.lines().filter(|line| line.contains("taut"));
        assert_eq!(of_ours.count(), 0, "{verified:?}");
    }
}

/// Returns the dependencies of a package, without versions.
fn depends(deb: &Path) -> Vec<String> {
    package_names(&dpkg_deb("--field", deb, &["Depends"]))
}

/// Returns the names in a field such as "libc6 (>= 2.34), zlib1g | zlib-ng", with all alternatives.
fn package_names(field: &str) -> Vec<String> {
    let parts = field.split([',', '|']);
    let names = parts.filter_map(|it| it.trim().split([' ', ':']).next());
    names
        .filter(|it| !it.is_empty())
        .map(str::to_string)
        .collect()
}

/// An installed package: its part of dpkg's list, and the fields with its dependencies.
struct Installed {
    paragraph: String,
    is_essential: bool,
    needs: Vec<String>,
}

/// Returns the installed packages by name, and the packages that provide each virtual name.
fn installed() -> (BTreeMap<String, Installed>, BTreeMap<String, Vec<String>>) {
    let status = fs::read_to_string("/var/lib/dpkg/status").unwrap();
    let mut all = BTreeMap::new();
    let mut stand_ins: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for paragraph in status.split("\n\n") {
        let field = |name: &str| {
            let start = format!("{name}: ");
            let mut lines = paragraph.lines();
            lines
                .find_map(|line| line.strip_prefix(start.as_str()))
                .unwrap_or_default()
        };
        if field("Status") != "install ok installed" {
            continue;
        }
        let name = field("Package").to_string();
        for provided in package_names(field("Provides")) {
            stand_ins.entry(provided).or_default().push(name.clone());
        }
        let needs = [field("Pre-Depends"), field("Depends")]
            .map(package_names)
            .concat();
        let is_essential = field("Essential") == "yes" || field("Priority") == "required";
        let paragraph = paragraph.to_string();
        all.insert(
            name,
            Installed {
                paragraph,
                is_essential,
                needs,
            },
        );
    }
    (all, stand_ins)
}

/// Fills `root` with a Debian system and returns by which method. It uses debootstrap if that is installed and reaches
/// a mirror. Otherwise it copies the installed files of all essential packages and of the packages `wanted`.
fn fill(root: &Path, wanted: &[String]) -> &'static str {
    // The package is tested on the release that this machine runs.
    let about = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = about
        .lines()
        .find_map(|it| it.strip_prefix("VERSION_CODENAME="));
    if let (true, Some(release)) = (is_installed("debootstrap"), release) {
        let mut command = Command::new("timeout");
        command.args(["300", "debootstrap", "--variant=minbase"]);
        command.arg(format!("--include={}", wanted.join(",")));
        let made =
            Program::start(command.arg(release).arg(root)).finish_within(Duration::from_secs(330));
        if made.code() == Some(0) {
            return "debootstrap";
        }
        fs::remove_dir_all(root).unwrap();
    }
    let (all, stand_ins) = installed();
    let essential = all.iter().filter(|(_, it)| it.is_essential);
    let mut left: Vec<String> = essential.map(|(name, _)| name.clone()).collect();
    left.extend_from_slice(wanted);
    let mut chosen = BTreeSet::new();
    while let Some(name) = left.pop() {
        let named = all.get_key_value(&name);
        let stand_in = || {
            stand_ins
                .get(&name)?
                .first()
                .and_then(|it| all.get_key_value(it))
        };
        if let Some((name, package)) = named.or_else(stand_in)
            && chosen.insert(name)
        {
            left.extend_from_slice(&package.needs);
        }
    }
    // In all current Debian systems, `/bin`, `/sbin` and `/lib` are links to the folders in `/usr`.
    fs::create_dir_all(root.join("usr")).unwrap();
    for name in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir(root.join("usr").join(name)).unwrap();
        symlink(format!("usr/{name}"), root.join(name)).unwrap();
    }
    for folder in [
        "proc",
        "dev",
        "sys",
        "run",
        "tmp",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
    ] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let mut files = BTreeSet::new();
    let mut status = String::new();
    for name in chosen {
        status += &format!("{}\n\n", all[name].paragraph);
        for entry in fs::read_dir("/var/lib/dpkg/info").unwrap().flatten() {
            let entry_name = entry.file_name().into_string().unwrap();
            let (of, kind) = entry_name.rsplit_once('.').unwrap_or_default();
            if of.split(':').next() != Some(name) {
                continue;
            }
            fs::copy(
                entry.path(),
                root.join("var/lib/dpkg/info").join(&entry_name),
            )
            .unwrap();
            if kind == "list" {
                let list = fs::read_to_string(entry.path()).unwrap();
                files.extend(
                    list.lines()
                        .map(|line| line.trim_start_matches('/').to_string()),
                );
            }
        }
    }
    fs::write(root.join("var/lib/dpkg/status"), status).unwrap();
    // Files that dpkg was configured not to install, such as documentation, are skipped.
    files.retain(|file| {
        !file.is_empty() && file != "." && Path::new("/").join(file).symlink_metadata().is_ok()
    });
    // These files belong to no package: links that package scripts have made, and the user and group databases.
    let made = ["usr/bin/sh", "etc/passwd", "etc/group", "etc/ld.so.cache"];
    files.extend(made.map(str::to_string));
    let list = root.join("tmp/files");
    fs::write(&list, files.into_iter().collect::<Vec<_>>().join("\n")).unwrap();
    let copy = "tar -C / --no-recursion -cf - -T \"$1/tmp/files\" | tar -C \"$1\" --keep-directory-symlink -xf -";
    run(Command::new("sh").args(["-ec", copy, "sh"]).arg(root)).success();
    fs::remove_file(&list).unwrap();
    "the packages of this machine"
}

/// Lists everything in the folders of `root` that packages write to, except dpkg's database.
fn listing(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left: Vec<PathBuf> = ["usr", "etc", "var/lib"].map(|it| root.join(it)).into();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() && !path.ends_with("var/lib/dpkg") {
                left.push(path.clone());
            }
            found.insert(path);
        }
    }
    found
}

/// Runs a script as root with `root` as root file system; its devices and processes end with the script.
fn inside(root: &Path, script: &str) -> Finished {
    let around = "mount --rbind /dev \"$1/dev\" && mount -t proc proc \"$1/proc\" && chroot \"$1\" /bin/sh -ec \"$2\"";
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--propagation",
        "private",
        "sh",
        "-ec",
        around,
        "sh",
    ]);
    command.arg(root).arg(script);
    command.env_clear().envs([
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ("LC_ALL", "C"),
        ("DEBIAN_FRONTEND", "noninteractive"),
    ]);
    Program::start(&mut command).finish_within(2 * PATIENCE)
}

#[test]
fn a_purged_debian_package_leaves_no_file() {
    if !debian() || !is_root() {
        return;
    }
    let folder = scratch();
    let deb = make_deb(&folder.path().join("made"));
    let root = folder.path().join("root");
    println!("root made of {}", fill(&root, &depends(&deb)));
    fs::create_dir_all(root.join(ENABLED.trim_start_matches('/'))).unwrap();
    let before = listing(&root);
    let from = root.join("tmp");
    fs::copy(&deb, from.join("old.deb")).unwrap();
    // The next version differs in its name only.
    let next = folder.path().join("next");
    run(Command::new("dpkg-deb")
        .arg("--raw-extract")
        .args([&deb, &next]))
    .success();
    let control = next.join("DEBIAN/control");
    let text = fs::read_to_string(&control).unwrap();
    let newer = text.replace(
        &format!("\nVersion: {VERSION}\n"),
        &format!("\nVersion: {VERSION}+next\n"),
    );
    assert_ne!(newer, text);
    fs::write(&control, newer).unwrap();
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "-Znone", "--build"]);
    run(command.args([&next, &from.join("new.deb")])).success();

    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all";
    let script = format!(
        "dpkg --install /tmp/old.deb
        {nobody} taut -V
        {nobody} taut generate --port null: --rate 1k --seconds 0.1 --warm-up 0 --max-loss 1 --json | tail -n 1
        {nobody} taut experiment check /usr/share/taut/experiments/stylianopoulos-fig2.toml >/dev/null || test $? = 3
        test -d /etc/taut
        dpkg --install /tmp/new.deb
        dpkg-query -W -f '${{Version}} ${{db:Status-Status}}\\n' taut
        {nobody} taut ports --json >/dev/null
        ln -s /usr/lib/systemd/system/taut-forward@.service {ENABLED}/taut-forward@edge.service
        dpkg --remove taut
        test ! -e /usr/bin/taut
        dpkg --purge taut"
    );
    let used = inside(&root, &script);
    assert_eq!(used.code(), Some(0), "{used:?}");
    assert!(
        used.stdout.contains(&format!("taut {VERSION}\n")),
        "{used:?}"
    );
    assert!(
        used.stdout.contains(&format!("{VERSION}+next installed\n")),
        "{used:?}"
    );
    assert!(used.stdout.contains("\"event\":\"summary\""), "{used:?}");
    let after = listing(&root);
    let left: Vec<_> = after.difference(&before).collect();
    let gone: Vec<_> = before.difference(&after).collect();
    assert!(
        left.is_empty() && gone.is_empty(),
        "left: {left:?}; gone: {gone:?}"
    );
    // The database of dpkg has no file about the package either.
    let books = names(&root.join("var/lib/dpkg/info"));
    assert!(!books.iter().any(|it| it.starts_with("taut.")), "{books:?}");
}

/// A control group below this machine's second hierarchy, removed with all of its processes.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates the control group; `None` if no hierarchy is writable.
    fn make() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let top = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[2] == "cgroup2").then(|| PathBuf::from(words[1]))
        });
        let path = top?.join(format!("taut-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        Some(Self(path))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        fn remove(group: &Path) {
            let below = fs::read_dir(group).into_iter().flatten().flatten();
            for entry in below.filter(|it| it.file_type().is_ok_and(|it| it.is_dir())) {
                remove(&entry.path());
            }
            let _ = fs::remove_dir(group);
        }
        // Killed processes remain until they are reaped.
        let deadline = Instant::now() + PATIENCE;
        while self.0.exists() && Instant::now() < deadline {
            let _ = fs::write(self.0.join("cgroup.kill"), "1");
            remove(&self.0);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The script that makes a folder the root file system of a container, in namespaces of its own. The container cannot
/// write to shared kernel settings.
const INTO_ROOT: &str = r#"
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -o ro -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
mkdir dev/shm
for device in null zero full random urandom tty; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
ln -s /proc/self/fd dev/fd
pivot_root . .
umount -l .
exec chroot . /lib/systemd/systemd --unit=check.service --log-target=null
"#;

/// The unit that runs the check as a service of the container's systemd, with output to a file; the system shuts down
/// after the check.
const CHECK: &str = "[Unit]
DefaultDependencies=no
SuccessAction=exit-force
FailureAction=exit-force
SuccessActionExitStatus=0
FailureActionExitStatus=1
[Service]
Type=oneshot
ExecStart=/bin/sh -ex /tmp/check.sh
Environment=DEBIAN_FRONTEND=noninteractive LC_ALL=C
StandardOutput=append:/tmp/said
StandardError=append:/tmp/said
";

/// The commands that an administrator types, and their expected effects.
const UNITS: &str = r#"
seen() {
    left=600
    until eval "$1"; do
        left=$((left - 1))
        test "$left" -gt 0
        sleep 0.1
    done
}
running() {
    cat /proc/[0-9]*/comm | grep -cx taut
}
main() {
    systemctl show --value --property MainPID "$1"
}
dpkg --install /tmp/taut.deb
mkdir -p /etc/taut
printf 'ports = ["null:source=1", "null:"]\nwait = "yield"\n[[function]]\nname = "forward"\n' | tee /etc/taut/edge.toml >/etc/taut/wire.toml
systemctl enable --now taut-chain@edge taut-forward@wire
systemctl is-active taut-chain@edge taut-forward@wire
set +x
seen 'taut chain status edge --json | grep -q "\"rx_packets\": [1-9]"'
set -x
# With no more rights than the unit says.
grep CapBnd "/proc/$(main taut-chain@edge)/status"
grep NoNewPrivs "/proc/$(main taut-chain@edge)/status"
# What dies comes back.
before=$(main taut-chain@edge)
kill -9 "$before"
seen 'now=$(main taut-chain@edge); test "$now" != 0 && test "$now" != "$before" && taut chain status edge >/dev/null'
# A mistake does not.
echo 'ports = 1' >/etc/taut/wrong.toml
systemctl start taut-chain@wrong || true
seen 'test "$(systemctl is-failed taut-chain@wrong)" = failed'
systemctl show --property NRestarts,ExecMainStatus taut-chain@wrong
systemctl stop taut-forward@wire
test "$(systemctl show --value --property Result taut-forward@wire)" = success
dpkg --purge taut
test "$(running)" = 0
"#;

#[test]
fn service_units_of_the_debian_package_run_under_systemd() {
    if !debian() || !is_root() {
        return;
    }
    let Some(group) = ControlGroup::make() else {
        return println!("skipped: needs control groups (cgroup2) that it may make");
    };
    let folder = scratch();
    let deb = make_deb(&folder.path().join("made"));
    let root = folder.path().join("root");
    let wanted = [depends(&deb), vec!["systemd".to_string()]].concat();
    println!("root made of {}", fill(&root, &wanted));
    let within = |name: &str| root.join(name);
    if !within("usr/lib/systemd/systemd").exists() {
        return println!("skipped: needs systemd (package systemd)");
    }
    // The container starts only the units that the test requests.
    for folder in ["usr/lib/systemd/system", "etc/systemd/system"] {
        let entries = fs::read_dir(within(folder)).into_iter().flatten().flatten();
        for entry in entries {
            if entry.file_name().to_string_lossy().ends_with(".wants") {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
    }
    fs::copy(&deb, within("tmp/taut.deb")).unwrap();
    fs::write(within("tmp/check.sh"), UNITS).unwrap();
    let units = within("etc/systemd/system");
    fs::create_dir_all(&units).unwrap();
    fs::write(units.join("check.service"), CHECK).unwrap();
    // The container has no network that could come online.
    for waiting in ["systemd-networkd-wait-online", "ifupdown-wait-online"] {
        symlink("/dev/null", units.join(format!("{waiting}.service"))).unwrap();
    }
    for unit in ["taut-chain@", "taut-forward@"] {
        let more = units.join(format!("{unit}.service.d"));
        fs::create_dir(&more).unwrap();
        let text = "[Service]\nStandardError=append:/tmp/said\nRestartSec=0.1\n";
        fs::write(more.join("said.conf"), text).unwrap();
    }
    let mut command = Command::new("sh");
    let join = "echo $$ >\"$1/cgroup.procs\"; shift; exec unshare --cgroup --mount --pid --ipc --uts --net --fork --kill-child \
        --propagation private sh -ec \"$@\"";
    command.args(["-ec", join, "sh"]).arg(&group.0);
    command.args([INTO_ROOT, "sh"]).arg(&root);
    command.env_clear().envs([
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ("container", "taut"),
    ]);
    let ended = Program::start(&mut command).finish_within(2 * PATIENCE);
    let said = fs::read_to_string(within("tmp/said")).unwrap_or_default();
    assert_eq!(ended.code(), Some(0), "{ended:?}: {said}");
    let line = |start: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("no {start}: {said}"))
            .trim()
            .to_string()
    };
    // CAP_NET_ADMIN, NET_RAW, IPC_LOCK, SYS_NICE, PERFMON and BPF, as linux/capability.h numbers them.
    let rights = [12, 13, 14, 23, 38, 39]
        .map(|bit| 1_u64 << bit)
        .iter()
        .sum::<u64>();
    assert_eq!(line("CapBnd:"), format!("{rights:016x}"));
    assert_eq!(line("NoNewPrivs:"), "1");
    assert_eq!(
        (line("NRestarts="), line("ExecMainStatus=")),
        ("0".to_string(), "2".to_string())
    );
    let left = names(&within("etc/systemd/system/multi-user.target.wants"));
    assert!(!left.iter().any(|it| it.starts_with("taut")), "{left:?}");
}

/// Runs rpm with the given arguments, with its database in `root`; returns its output.
#[track_caller]
fn rpm(root: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("rpm");
    command.arg("--root").arg(root);
    command.args(["--dbpath", "/var/lib/rpm"]).args(arguments);
    run(&mut command).success().stdout
}

/// Some of the files that an rpm installs.
const OF_AN_RPM: [&str; 15] = [
    "/etc/taut",
    "/usr/bin/taut",
    "/usr/include/taut_function.h",
    "/usr/lib/systemd/system/taut-capture@.service",
    "/usr/lib/systemd/system/taut-chain@.service",
    "/usr/lib/systemd/system/taut-forward@.service",
    "/usr/lib/systemd/system/taut-serve.service",
    "/usr/share/bash-completion/completions/taut",
    "/usr/share/doc/taut/CHANGELOG.md",
    "/usr/share/doc/taut/docs/how-to/install-taut.md",
    "/usr/share/fish/vendor_completions.d/taut.fish",
    "/usr/share/licenses/taut/LICENSE",
    "/usr/share/man/man1/taut-bench-rfc2544.1.gz",
    "/usr/share/taut/experiments/demo.toml",
    "/usr/share/zsh/site-functions/_taut",
];

#[test]
fn an_rpm_is_reproducible_and_installs_all_of_taut() {
    if !is_installed("rpmbuild") {
        return println!("skipped: needs rpmbuild (package rpm)");
    }
    let folder = scratch();
    let made = ["one", "two"].map(|it| {
        let to = folder.path().join(it);
        package("rpm", TAUT, &to);
        let names = names(&to);
        assert_eq!(names.len(), 1, "{names:?}");
        to.join(names.first().unwrap())
    });
    let name = made[0].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(&format!("taut-{VERSION}-1.")), "{name}");
    assert!(
        fs::read(&made[0]).unwrap() == fs::read(&made[1]).unwrap(),
        "two packages of one program"
    );

    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    let file = made[0].to_str().unwrap();
    // Queries of files need no privileges. Without `--dbpath` they would create a database in the home folder.
    let query = |what: &str| {
        let mut command = Command::new("rpm");
        command.arg("--dbpath").arg(folder.path().join("database"));
        run(command.args(["-qp", what, file])).success().stdout
    };
    let requires = query("--requires");
    assert!(requires.contains("libc.so.6(GLIBC_2."), "{requires}");
    // The examples in Python add no dependency.
    assert!(!requires.contains("python"), "{requires}");
    let listing = query("-l");
    for wanted in OF_AN_RPM {
        assert!(listing.lines().any(|it| it == wanted), "no {wanted}");
    }
    if !is_root() {
        return;
    }
    // The root file system is empty, so it has neither the libraries nor a shell for the scripts.
    rpm(&root, &["-i", "--nodeps", "--noscripts", file]);
    let untrue = rpm(&root, &["-V", "--nodeps", "taut"]);
    assert_eq!(untrue, "");
    let mut command = Command::new(root.join("usr/bin/taut"));
    let said = run(command.arg("-V")).success().stdout;
    assert_eq!(said, format!("taut {VERSION}\n"));
    rpm(&root, &["-e", "--noscripts", "taut"]);
    for gone in ["etc/taut", "usr/bin/taut", "usr/share/taut"] {
        assert!(!root.join(gone).exists(), "{gone}");
    }
}

/// Returns the path of the file that a descriptor in an image layout names, after checking the file's digest and size.
#[track_caller]
fn blob(layout: &Path, descriptor: &Value, kind: &str) -> PathBuf {
    assert_eq!(
        descriptor["mediaType"],
        format!("application/vnd.oci.image.{kind}")
    );
    let digest = descriptor["digest"]
        .as_str()
        .unwrap()
        .strip_prefix("sha256:")
        .unwrap();
    let path = layout.join("blobs/sha256").join(digest);
    assert_eq!(sha256(&path), digest);
    assert_eq!(descriptor["size"], fs::metadata(&path).unwrap().size());
    path
}

#[track_caller]
fn sha256(path: &Path) -> String {
    let said = run(Command::new("sha256sum").arg(path)).success().stdout;
    said.split(' ').next().unwrap().to_string()
}

/// Writes a small program in place of the complete one, for packages that are compressed.
fn small_program(folder: &Path) -> PathBuf {
    let program = folder.join("taut");
    let text = "#!/bin/sh\ntest \"$1\" != man || { mkdir -p \"$2\" && : >\"$2/taut.1\"; }\n";
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[track_caller]
fn make_wheel(program: &str, folder: &Path) -> PathBuf {
    let prefix = format!("taut_net-{VERSION}-py3-none-");
    make("wheel", program, folder, &prefix)
}

/// Reports whether wheels can be made; else prints why the test is skipped.
fn makes_wheels() -> bool {
    let makes = is_installed("python3") && is_installed("readelf");
    if !makes {
        println!("skipped: needs python3 and readelf (package binutils)");
    }
    makes
}

/// Compares a wheel with its RECORD, and prints its tag, then the names of its files.
const CHECK_RECORD: &str = r#"
import base64, csv, hashlib, io, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = wheel.namelist()
read = lambda end: next(wheel.read(name) for name in names if name.endswith(f".dist-info/{end}")).decode()
rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(read("RECORD")))}
assert sorted(rows) == sorted(names), (rows, names)
for name in names:
    data = wheel.read(name)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    is_record = name.endswith("/RECORD") and rows[name] == ["", ""]
    assert is_record or rows[name] == [f"sha256={digest}", str(len(data))], name
print(read("WHEEL").split("Tag: ")[1].strip())
print("\n".join(names))
"#;

#[test]
fn a_wheel_is_reproducible_and_its_record_is_correct() {
    if !makes_wheels() {
        return;
    }
    let folder = scratch();
    let program = small_program(folder.path());
    let program = program.to_str().unwrap();
    let wheel = make_wheel(program, &folder.path().join("one"));
    let again = make_wheel(program, &folder.path().join("two"));
    assert!(
        fs::read(&wheel).unwrap() == fs::read(&again).unwrap(),
        "two wheels of one program"
    );
    let mut command = Command::new("python3");
    let said = run(command.args(["-c", CHECK_RECORD]).arg(&wheel)).success();
    let mut lines = said.stdout.lines();
    // The program is a script here, so the tag names no version of glibc.
    let tag = format!("py3-none-linux_{}", std::env::consts::ARCH);
    assert_eq!(lines.next(), Some(tag.as_str()));
    assert!(wheel.to_str().unwrap().ends_with(&format!("-{tag}.whl")));
    let files: BTreeSet<&str> = lines.collect();
    let data = format!("taut_net-{VERSION}.data");
    let about = format!("taut_net-{VERSION}.dist-info");
    for wanted in [
        "taut/__init__.py",
        "taut/py.typed",
        &format!("{data}/scripts/taut"),
        &format!("{data}/data/share/man/man1/taut.1"),
        &format!("{data}/data/share/taut/experiments/demo.toml"),
        &format!("{data}/data/include/taut_function.h"),
        &format!("{about}/METADATA"),
        &format!("{about}/licenses/LICENSE"),
    ] {
        assert!(files.contains(wanted), "no {wanted}: {files:?}");
    }
    assert!(!files.iter().any(|it| it.contains("__pycache__")));
}

#[test]
fn pip_installs_the_wheel_and_the_package_finds_its_program() {
    if !makes_wheels() {
        return;
    }
    let folder = scratch();
    let venv = folder.path().join("venv");
    let mut command = Command::new("python3");
    let made = Program::start(command.args(["-m", "venv"]).arg(&venv)).finish_within(2 * PATIENCE);
    if made.code() != Some(0) {
        return println!("skipped: needs python3 with venv and pip (package python3-venv)");
    }
    let wheel = make_wheel(TAUT, &folder.path().join("made"));
    let within = |program: &str| {
        let mut command = Command::new(venv.join("bin").join(program));
        command.current_dir(folder.path());
        command.env_remove("TAUT").env_remove("PYTHONPATH");
        command
    };
    let pip = |arguments: &[&str]| {
        let mut command = within("pip");
        command.args(["--isolated", "--quiet", "--disable-pip-version-check"]);
        Program::start(command.args(arguments))
            .finish_within(2 * PATIENCE)
            .success();
    };
    pip(&["install", "--no-index", wheel.to_str().unwrap()]);
    let said = run(within("taut").arg("-V")).success();
    assert_eq!(said.stdout, format!("taut {VERSION}\n"));
    let script = "import taut; print(taut.program()); taut.run('functions', progress=False)";
    let said = run(within("python").args(["-c", script])).success();
    let program = venv.join("bin/taut");
    assert_eq!(said.stdout.trim(), program.to_str().unwrap());
    pip(&["uninstall", "--yes", "taut-net"]);
    assert!(!program.exists() && !venv.join("share/taut/experiments").exists());
}

#[test]
fn a_container_image_is_reproducible_and_its_digests_are_correct() {
    let folder = scratch();
    let program = small_program(folder.path());
    let program = program.to_str().unwrap();
    for out in ["one", "two"] {
        let out = folder.path().join(out);
        package("archive", program, &out);
        let archives = names(&out);
        let archive = out.join(archives.first().unwrap());
        package("image", archive.to_str().unwrap(), &out);
    }
    let made = names(&folder.path().join("one"));
    assert_eq!(made.len(), 2, "{made:?}");
    for name in &made {
        assert!(name.starts_with(&format!("taut-{VERSION}-")), "{name}");
        let read = |out: &str| fs::read(folder.path().join(out).join(name)).unwrap();
        assert!(
            read("one") == read("two"),
            "{name} differs from one time to the next"
        );
    }
    let image = made.iter().find(|name| name.ends_with(".oci.tar")).unwrap();
    let unpack = |archive: &Path, to: &str| {
        let to = folder.path().join(to);
        fs::create_dir(&to).unwrap();
        run(Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(&to))
        .success();
        to
    };
    let layout = unpack(&folder.path().join("one").join(image), "layout");
    assert_eq!(
        json(&layout.join("oci-layout"))["imageLayoutVersion"],
        "1.0.0"
    );
    let index = json(&layout.join("index.json"));
    let manifest = json(&blob(&layout, &index["manifests"][0], "manifest.v1+json"));
    let config = json(&blob(&layout, &manifest["config"], "config.v1+json"));
    let layer = blob(&layout, &manifest["layers"][0], "layer.v1.tar+gzip");
    // The layout has three blobs (manifest, configuration and layer), so all of them are referenced.
    assert_eq!(names(&layout.join("blobs/sha256")).len(), 3);
    assert_eq!(
        config["config"]["Entrypoint"],
        serde_json::json!(["/usr/bin/taut"])
    );
    assert_eq!(config["os"], "linux");
    let unpacked = folder.path().join("layer.tar");
    let gunzip = format!("gzip -dc '{}' >'{}'", layer.display(), unpacked.display());
    run(Command::new("sh").args(["-ec", &gunzip])).success();
    assert_eq!(
        config["rootfs"]["diff_ids"][0],
        format!("sha256:{}", sha256(&unpacked))
    );
    let root = unpack(&unpacked, "root");
    for wanted in [
        "usr/bin/taut",
        "usr/share/taut/experiments/demo.toml",
        "etc/taut",
        "proc",
        "tmp",
    ] {
        assert!(root.join(wanted).exists(), "{wanted}");
    }
    assert_eq!(
        fs::metadata(root.join("usr/bin/taut")).unwrap().mode() & 0o777,
        0o755
    );
}

#[test]
fn missing_input_files_and_unknown_package_formats_are_refused() {
    let folder = scratch();
    let mut command = Command::new("packaging/package");
    let said = run(command
        .args(["archive", "/nowhere/taut"])
        .arg(folder.path()));
    assert_eq!(said.code(), Some(2), "{said:?}");
    assert_eq!(said.stderr, "package: stopped: /nowhere/taut is no file\n");
    let said = run(Command::new("packaging/package")
        .args(["zip", TAUT])
        .arg(folder.path()));
    assert_eq!(said.code(), Some(2), "{said:?}");
    assert!(
        said.stderr.starts_with("usage: packaging/package KIND"),
        "{said:?}"
    );
}

#[test]
fn package_names_are_parsed_from_dependency_fields() {
    assert_eq!(
        package_names("libc6 (>= 2.34), zlib1g | zlib-ng, perl:any"),
        ["libc6", "zlib1g", "zlib-ng", "perl"]
    );
    assert!(package_names("").is_empty());
}
