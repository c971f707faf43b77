//! `taut experiment` on machines reached over SSH: two network namespaces, each with its own `sshd`, connected to each
//! other and to a third namespace, from which the experiment starts.

use crate::support::hosts::{Namespace, in_namespace, ip};
use crate::support::program::{Finished, PATIENCE, Program, run};
use crate::support::{alone_and_root, is_installed, scratch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::MutexGuard;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The names of the remote machines; each listens at `ADDRESS`.
const FAR: [&str; 2] = ["gen", "dut"];
const ADDRESS: [&str; 2] = ["10.0.1.2", "10.0.2.2"];

/// Three machines as namespaces: `here`, and those of [`FAR`].
struct Machines {
    _turn: MutexGuard<'static, ()>,
    folder: TempDir,
    here: Namespace,
    far: [Namespace; 2],
    servers: [Option<Child>; 2],
    full: Option<PathBuf>,
}

impl Drop for Machines {
    fn drop(&mut self) {
        for number in 0..2 {
            self.cut(number);
        }
        if let Some(full) = &self.full {
            let _ = Command::new("umount").arg("-l").arg(full).status();
        }
    }
}

impl Machines {
    fn new() -> Option<Self> {
        let turn = alone_and_root()?;
        if !is_installed("ssh") || !Path::new("/usr/sbin/sshd").exists() {
            println!("skipped: needs ssh and sshd (packages openssh-client and openssh-server)");
            return None;
        }
        let folder = scratch();
        let name = |machine: &str| {
            let own = folder.path().file_name().unwrap().to_string_lossy();
            Namespace(format!("{}-{machine}", own.replace('.', "")))
        };
        let machines = Self {
            _turn: turn,
            here: name("here"),
            far: FAR.map(name),
            servers: [None, None],
            full: None,
            folder,
        };
        machines.wire();
        machines.keys();
        let mut machines = machines;
        for number in 0..2 {
            machines.serve(number);
        }
        Some(machines)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn wire(&self) {
        let [generator, device] = &self.far;
        for namespace in [&self.here, generator, device] {
            ip(&format!("netns add {}", namespace.0));
            ip(&format!("-n {} link set lo up", namespace.0));
        }
        let cable = |near: &Namespace, a: &str, far: &Namespace, b: &str| {
            ip(&format!(
                "-n {} link add {a} type veth peer name {b} netns {}",
                near.0, far.0
            ));
            ip(&format!("-n {} link set {a} up", near.0));
            ip(&format!("-n {} link set {b} up", far.0));
        };
        for (number, far) in self.far.iter().enumerate() {
            let net = number + 1;
            cable(&self.here, &format!("far{number}"), far, "mgmt");
            ip(&format!(
                "-n {} addr add 10.0.{net}.1/24 dev far{number}",
                self.here.0
            ));
            ip(&format!(
                "-n {} addr add {}/24 dev mgmt",
                far.0, ADDRESS[number]
            ));
        }
        cable(generator, "out", device, "west");
        cable(generator, "back", device, "east");
    }

    fn keys(&self) {
        for key in ["user", "host-gen", "host-dut", "host-other"] {
            let mut command = Command::new("ssh-keygen");
            let made = run(command
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(self.path(key)));
            assert_eq!(made.code(), Some(0), "{made:?}");
        }
        self.know("host-gen", "host-dut");
        let config = format!(
            "Host *\nIdentityFile {0}/user\nIdentitiesOnly yes\nUserKnownHostsFile {0}/known\nGlobalKnownHostsFile /dev/null\n",
            self.folder.path().display()
        );
        fs::write(self.path("config"), config).unwrap();
        // ssh reads its settings from the user's home folder, so a wrapper makes it read those of the test.
        fs::create_dir_all(self.path("bin")).unwrap();
        let ssh = format!(
            "#!/bin/sh\nexec /usr/bin/ssh -F {}/config \"$@\"\n",
            self.folder.path().display()
        );
        executable(&self.path("bin/ssh"), &ssh);
    }

    /// Writes the file of known host keys. The arguments name the key files of the two machines; an empty name writes
    /// no key for that machine.
    fn know(&self, generator: &str, device: &str) {
        let mut known = String::new();
        for (address, key) in ADDRESS.iter().zip([generator, device]) {
            if !key.is_empty() {
                let key = fs::read_to_string(self.path(&format!("{key}.pub"))).unwrap();
                known += &format!("[{address}]:2222 {key}");
            }
        }
        fs::write(self.path("known"), known).unwrap();
    }

    /// Starts the SSH server of a remote machine.
    fn serve(&mut self, number: usize) {
        // sshd needs this folder for privilege separation; on a real machine, the service of sshd creates the folder.
        fs::create_dir_all("/run/sshd").unwrap();
        let name = FAR[number];
        let own = self.folder.path().display();
        for folder in ["tmp", "cache", "path"] {
            fs::create_dir_all(self.path(&format!("{folder}-{name}"))).unwrap();
        }
        let config = format!(
            "ListenAddress {}:2222\nHostKey {own}/host-{name}\nAuthorizedKeysFile {own}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n\
             SetEnv HOME={own} TMPDIR={own}/tmp-{name} XDG_CACHE_HOME={own}/cache-{name} PATH={own}/path-{name}:/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH={own}/path-{name}\n",
            ADDRESS[number]
        );
        let file = self.path(&format!("sshd-{name}"));
        fs::write(&file, config).unwrap();
        let log = fs::File::create(self.path(&format!("log-{name}"))).unwrap();
        let server = in_namespace(&self.far[number].0, "/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(file)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.servers[number] = Some(server);
        let deadline = Instant::now() + PATIENCE;
        let log = || fs::read_to_string(self.path(&format!("log-{name}"))).unwrap();
        while !log().contains("Server listening") {
            assert!(Instant::now() < deadline, "{}", log());
            sleep(Duration::from_millis(10));
        }
    }

    /// Kills the SSH server of a remote machine with its connections, and nothing else on that machine.
    fn cut(&mut self, number: usize) {
        for process in self.processes(number, "sshd") {
            let _ = kill_process(process, Signal::KILL);
        }
        if let Some(mut server) = self.servers[number].take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Returns the number of connections from this machine that were refused.
    fn refused_connections(&self) -> u64 {
        let read = run(in_namespace(&self.here.0, "cat").arg("/proc/net/snmp")).success();
        let mut lines = read.stdout.lines().filter(|line| line.starts_with("Tcp: "));
        let [names, counts] = [(); 2].map(|()| lines.next().unwrap().split(' '));
        let (_, refused) = names.zip(counts).find(|it| it.0 == "AttemptFails").unwrap();
        refused.parse().unwrap()
    }

    /// Sets the boot ID that the device's machine reports from now on.
    fn boot_id(&self, id: &str) {
        let cat = format!(
            "#!/bin/sh\ncase $1 in */boot_id) echo {id};; *) exec /usr/bin/cat \"$@\";; esac\n"
        );
        executable(&self.path("path-dut/cat"), &cat);
    }

    /// Returns the processes with the given name on a remote machine.
    fn processes(&self, number: usize, name: &str) -> Vec<Pid> {
        self.processes_by(number, "comm", &format!("{name}\n"))
    }

    /// Returns the long-running steps on a remote machine; short sleeps of shells are not included.
    fn steps(&self, number: usize) -> Vec<Pid> {
        self.processes_by(number, "cmdline", "sleep\x00600\0")
    }

    fn processes_by(&self, number: usize, file: &str, text: &str) -> Vec<Pid> {
        let listed = run(Command::new("ip").args(["netns", "pids", &self.far[number].0]));
        let pids = listed
            .stdout
            .lines()
            .filter_map(|line| line.trim().parse().ok());
        pids.filter(|pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/{file}")).is_ok_and(|it| it == text)
        })
        .filter_map(Pid::from_raw)
        .collect()
    }

    /// Writes an experiment file with `rest`, and with the two remote machines as nodes unless `rest` has nodes.
    /// Returns its path.
    fn experiment(&self, rest: &str) -> PathBuf {
        let path = self.path("two.toml");
        let nodes = rest.contains("[nodes.gen]");
        let mut text = format!("title = \"Two machines\"\n{rest}\n");
        if !nodes {
            for (name, address) in FAR.iter().zip(ADDRESS) {
                text += &format!(
                    "[nodes.{name}]\nat = \"ssh://root@{address}:2222\"\nboot_limit = \"20s\"\n"
                );
            }
        }
        fs::write(&path, text).unwrap();
        path
    }

    /// Runs `taut` on the machine from which experiments start.
    fn taut(&self, arguments: &[&str]) -> Command {
        let mut command = in_namespace(&self.here.0, env!("CARGO_BIN_EXE_taut"));
        let path = std::env::var("PATH").unwrap();
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", self.path("bin").display()));
        command
    }

    fn start(&self, experiment: &Path, out: &str) -> Program {
        let experiment = experiment.display().to_string();
        Program::start(&mut self.taut(&["experiment", "run", &experiment, "--out", out]))
    }

    fn run(&self, experiment: &Path, out: &str) -> Finished {
        self.start(experiment, out).finish_within(2 * PATIENCE)
    }

    /// Returns the output of `taut experiment check`.
    fn check(&self, experiment: &Path, more: &[&str]) -> Finished {
        let experiment = experiment.display().to_string();
        let words = [&["experiment", "check", &experiment], more].concat();
        Program::start(&mut self.taut(&words)).finish_within(2 * PATIENCE)
    }

    fn record(&self, run: &str) -> Value {
        let path = self.path(run).join("run.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).unwrap()
    }

    /// Checks that only the cached program is left on the remote machines.
    #[track_caller]
    fn nothing_is_left(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left: Vec<_> = FAR
                .iter()
                .flat_map(|name| fs::read_dir(self.path(&format!("tmp-{name}"))).unwrap())
                .map(|entry| entry.unwrap().path())
                .collect();
            let running: Vec<_> = (0..2)
                .flat_map(|n| [self.processes(n, "taut"), self.steps(n)].concat())
                .collect();
            if left.is_empty() && running.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left: {left:?} {running:?}");
            sleep(Duration::from_millis(50));
        }
    }
}

fn executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Checks for one line with all of `parts`, and the exit code of a missing requirement.
#[track_caller]
fn assert_refused(finished: &Finished, parts: &[&str]) {
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    assert_eq!(finished.stderr.trim().lines().count(), 1, "{finished:?}");
    for part in parts {
        assert!(
            finished.stderr.contains(part),
            "no `{part}` in {finished:?}"
        );
    }
}

/// Checks the exit code of a missing requirement, and that exactly one line of `checked` begins with `missing:` and
/// contains all `parts`.
#[track_caller]
fn assert_missing(checked: &Finished, parts: &[&str]) {
    assert_eq!(checked.code(), Some(3), "{checked:?}");
    let missing: Vec<&str> = checked
        .stdout
        .lines()
        .filter(|line| line.starts_with("missing: "))
        .collect();
    assert_eq!(missing.len(), 1, "{checked:?}");
    for part in parts {
        assert!(missing[0].contains(part), "no `{part}` in {checked:?}");
    }
}

#[test]
fn a_plant_is_controlled_from_another_machine() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let words = [
        "control",
        "run",
        "--plant",
        "conveyor",
        "--periods",
        "40",
        "--json",
        "--controller-in",
        "ssh://root@10.0.2.2:2222",
        "--at",
        "10.0.2.2",
    ];
    let run = || Program::start(&mut machines.taut(&words)).finish_within(PATIENCE);
    let refused = run();
    assert_eq!(refused.code(), Some(3), "{refused:?}");
    assert!(refused.stderr.contains("taut: not found"), "{refused:?}");
    std::os::unix::fs::symlink(
        env!("CARGO_BIN_EXE_taut"),
        machines.path("path-dut").join("taut"),
    )
    .unwrap();
    let found = run().success().last_json();
    assert_eq!(found["kpis"]["rounds"], 40, "{found}");
    assert!(
        found["kpis"]["round_trip"]["count"].as_u64() > Some(20),
        "{found}"
    );
    machines.nothing_is_left();
}

#[test]
fn a_device_is_measured_from_another_machine() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let experiment = machines.experiment(
        r#"
[loop]
rate = [100, 200]
[plan]
repetitions = 2
[[file]]
name = "conf/device.conf"
text = "packets {{ rate }}"
[[step]]
name = "device"
node = "dut"
run = "taut forward --port af_packet:west --port af_packet:east --json"
background = true
ready = "{"
[[step]]
name = "latency"
node = "gen"
run = "taut generate --port af_packet:out --port af_packet:back --rate {{ rate }} --seconds 0.5 --json; [ $? -le 1 ] && cp conf/device.conf left-here"
json = true
"#,
    );
    // Code 1 means that the generator sent late because other tests were running; its counts are still valid.
    let finished = machines.run(&experiment, "out").success();
    machines.nothing_is_left();
    assert!(finished.stdout.contains("4 of 4 runs"), "{finished:?}");
    let mut received = 0.0;
    for run in ["v1-r1", "v1-r2", "v2-r1", "v2-r2"] {
        let record = machines.record(&format!("out/runs/{run}"));
        let packets = if run.starts_with("v1") { 100 } else { 200 };
        let left = machines.path(&format!("out/runs/{run}/gen/left-here"));
        assert_eq!(
            fs::read_to_string(left).unwrap(),
            format!("packets {packets}")
        );
        assert!(record["files"]["gen/left-here"].is_string(), "{record}");
        assert!(
            record["files"]["dut/activity/device.json"].is_string(),
            "{record}"
        );
        assert!(record["nodes"]["dut"].is_string(), "{record}");
        let count = |name: &str| record["metrics"][name].as_f64();
        assert!(count("latency.tally.sent").unwrap() > 0.0, "{record}");
        received += count("latency.tally.received").unwrap();
    }
    // In one of these short runs the forwarder may get no core, as other tests hold them with real-time priority.
    assert!(received > 0.0);
    // The program is copied to each machine once.
    let copy = |name: &str| {
        let folder = machines.path(&format!("cache-{name}/taut"));
        let hash = fs::read_dir(folder)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        assert_eq!(fs::read_dir(&hash).unwrap().count(), 1);
        fs::metadata(hash.join("taut")).unwrap().modified().unwrap()
    };
    let before = FAR.map(copy);
    machines.run(&experiment, "again").success();
    assert_eq!(FAR.map(copy), before);
}

#[test]
fn each_problem_of_a_node_is_reported_in_one_line() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let experiment = machines.experiment(
        "[plan]\nrepetitions = 1\n[[step]]\nnode = \"gen\"\nrun = \"touch begun; sleep 600\"\n",
    );
    let checked = machines.check(&experiment, &[]).success();
    for name in ["gen", "dut"] {
        let line = format!("node {name}: reachable: ");
        assert!(checked.stdout.contains(&line), "{checked:?}");
    }
    assert!(checked.stdout.contains("GiB free"), "{checked:?}");
    machines.nothing_is_left();

    machines.know("host-other", "host-dut");
    let parts = ["node gen", "host key is not the known one", "ssh-keygen -R"];
    assert_refused(&machines.run(&experiment, "o1"), &parts);
    let checked = machines.check(&experiment, &[]);
    assert_missing(&checked, &parts);
    assert!(
        checked.stdout.contains("node dut: reachable"),
        "{checked:?}"
    );
    let offline = machines.check(&experiment, &["--offline"]).success();
    assert!(!offline.stdout.contains("node "), "{offline:?}");
    machines.know("host-gen", "");
    assert_refused(
        &machines.run(&experiment, "o2"),
        &[
            "node dut",
            "host key is not known here",
            "ssh -p 2222 root@10.0.2.2",
        ],
    );
    machines.know("host-gen", "host-dut");

    machines.cut(1);
    let refused = machines.run(&experiment, "o3");
    assert_refused(&refused, &["node dut: cannot be reached", "refused"]);
    assert_missing(
        &machines.check(&experiment, &[]),
        &["node dut: cannot be reached", "refused"],
    );
    machines.serve(1);

    // A library of the right name lacks the versions that taut was built with, as on an older system.
    let old = machines.path("path-dut/libgcc_s.so.1");
    fs::write(machines.path("old.map"), "OLD_1.0 { global: *; };\n").unwrap();
    let mut cc = Command::new("cc");
    cc.args([
        "-shared",
        "-nostdlib",
        "-x",
        "c",
        "/dev/null",
        "-Wl,-soname,libgcc_s.so.1",
    ])
    .arg(format!(
        "-Wl,--version-script={}",
        machines.path("old.map").display()
    ))
    .arg("-o")
    .arg(&old);
    assert_eq!(run(&mut cc).code(), Some(0));
    let parts = [
        "node dut: this taut does not run there",
        "older",
        "built on a system like it",
    ];
    assert_refused(&machines.run(&experiment, "o3b"), &parts);
    assert_missing(&machines.check(&experiment, &[]), &parts);
    fs::remove_file(old).unwrap();

    let key = fs::read(machines.path("user.pub")).unwrap();
    fs::copy(machines.path("host-other.pub"), machines.path("user.pub")).unwrap();
    assert_refused(
        &machines.run(&experiment, "o4"),
        &["node gen: no permission", "ssh-copy-id"],
    );
    fs::write(machines.path("user.pub"), key).unwrap();

    let uname = machines.path("path-dut/uname");
    executable(
        &uname,
        "#!/bin/sh\ncase $1 in -m) echo sparc64;; *) exec /usr/bin/uname \"$@\";; esac\n",
    );
    assert_refused(
        &machines.run(&experiment, "o5"),
        &["node dut", "Linux sparc64", "made for Linux"],
    );
    fs::remove_file(uname).unwrap();

    // A file system of 8 MB is too small for any run.
    let full = machines.path("tmp-dut");
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(&full);
    assert_eq!(run(&mut mount).code(), Some(0));
    machines.full = Some(full);
    // A server sees the mounts that existed when it started.
    machines.cut(1);
    machines.serve(1);
    let finished = machines.run(&experiment, "o6");
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("node dut: 8 MiB are free where runs are"),
        "{finished:?}"
    );
    assert_missing(
        &machines.check(&experiment, &[]),
        &["node dut: 8 MiB are free where runs are"],
    );
    machines.cut(1);
    run(Command::new("umount")
        .arg("-l")
        .arg(machines.full.take().unwrap()));
    machines.serve(1);

    let first = machines.start(&experiment, "o7");
    let deadline = Instant::now() + PATIENCE;
    while machines.steps(0).is_empty() {
        assert!(
            Instant::now() < deadline,
            "the step never began: {}",
            first.stderr()
        );
        sleep(Duration::from_millis(20));
    }
    assert_refused(
        &machines.run(&experiment, "o8"),
        &["node gen", "another experiment", "wait for it to end"],
    );
    let held = machines.check(&experiment, &[]);
    assert_eq!(held.code(), Some(3), "{held:?}");
    assert!(
        held.stdout
            .contains("missing: node gen: another experiment"),
        "{held:?}"
    );
    let stopped = first.interrupt();
    assert_eq!(stopped.code(), Some(130), "{stopped:?}");
    machines.nothing_is_left();

    // The command is killed before it can clean up, so the remote machines clean up themselves.
    let killed = machines.start(&experiment, "o9");
    while machines.steps(0).is_empty() {
        assert!(Instant::now() < deadline + PATIENCE, "the step never began");
        sleep(Duration::from_millis(20));
    }
    killed.kill();
    machines.nothing_is_left();
}

#[test]
fn secrets_reach_remote_steps_and_appear_in_no_files() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let experiment = machines.experiment(
        r#"
secrets = ["TAUT_TOKEN"]
[plan]
repetitions = 1
[[step]]
name = "there"
node = "gen"
run = """
[ "$(printf %s "$TAUT_TOKEN" | wc -c)" = 11 ] || exit 9
printf 'it is %s\n' "$TAUT_TOKEN"
printf %s "$TAUT_TOKEN" >kept
cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' >processes || true
"""
[[step]]
name = "waits"
node = "dut"
run = "printf '%s' \"$TAUT_TOKEN\" | wc -c; exec sleep 600"
background = true
ready = "11"
"#,
    );
    let token = "to ken \"42\"";
    let mut command = machines.taut(&["experiment", "run"]);
    command.arg(&experiment).args(["--out", "out"]);
    let without = run(&mut command);
    assert_eq!(without.code(), Some(2), "{without:?}");
    assert!(
        without.stderr.contains("$TAUT_TOKEN is not set"),
        "{without:?}"
    );

    let finished = Program::start(command.env("TAUT_TOKEN", token))
        .finish_within(2 * PATIENCE)
        .success();
    machines.nothing_is_left();
    let kept = machines.path("out/runs/v1-r1/gen/kept");
    assert_eq!(fs::read_to_string(kept).unwrap(), "[secret]");
    let log = machines.path("out/runs/v1-r1/logs/there.out");
    assert_eq!(fs::read_to_string(log).unwrap(), "it is [secret]\n");
    // The command lines needed no redaction, as none of them contained the secret.
    let processes = machines.path("out/runs/v1-r1/gen/processes");
    let processes = fs::read_to_string(processes).unwrap();
    assert!(processes.contains("--secrets"), "{processes}");
    assert!(!processes.contains("[secret]"), "{processes}");
    for folder in ["out", "cache-gen", "cache-dut", "tmp-gen", "tmp-dut"] {
        let mut grep = Command::new("grep");
        let found = run(grep.args(["-rlF", token]).arg(machines.path(folder)));
        assert_eq!(found.stdout, "", "{finished:?}");
    }
}

#[test]
fn an_unreachable_machine_fails_only_one_run() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let step = "run = \"echo ready; [ {{ repetition }} != 2 ] || [ -e {{ there }} ] || sleep 600\"";
    let experiment = machines.experiment(&format!(
        "[variables]\nthere = \"{}\"\n[plan]\nrepetitions = 3\n[[step]]\nname = \"wait\"\nnode = \"dut\"\n{step}\n",
        machines.path("pass").display()
    ));
    let mut driver = machines.start(&experiment, "out");
    let deadline = Instant::now() + PATIENCE;
    while machines.steps(1).is_empty() {
        assert!(
            Instant::now() < deadline,
            "run 2 never began: {}",
            driver.stderr()
        );
        sleep(Duration::from_millis(20));
    }
    machines.cut(1);
    driver.wait_for_stderr("v1-r2: node dut: the connection to it broke");
    let deadline = Instant::now() + PATIENCE;
    while !machines.steps(1).is_empty() {
        assert!(
            Instant::now() < deadline,
            "the step outlives its connection"
        );
        sleep(Duration::from_millis(20));
    }
    // The machine has lost all of its processes, and its kernel reports a new boot.
    machines.boot_id("booted-again");
    machines.serve(1);
    let finished = driver.finish_within(2 * PATIENCE);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(finished.stdout.contains("2 of 3 runs"), "{finished:?}");
    let record = machines.record("out/runs/v1-r3");
    let notes = record["notes"].to_string();
    assert!(
        notes.contains("node dut has booted since it was lost"),
        "{notes}"
    );
    assert!(notes.contains("then booted-again"), "{notes}");
    let failed = machines.record("out/failed/v1-r2-1");
    assert!(
        failed["failure"].as_str().unwrap().contains("broke"),
        "{failed}"
    );
    machines.nothing_is_left();

    // The node hangs: the link is up, but nothing answers. Then it returns and takes part again.
    let resumed = Program::start(&mut machines.taut(&["experiment", "resume", "out"]));
    let deadline = Instant::now() + PATIENCE;
    while machines.steps(1).is_empty() {
        assert!(
            Instant::now() < deadline,
            "run 2 never began: {}",
            resumed.stderr()
        );
        sleep(Duration::from_millis(20));
    }
    ip(&format!("-n {} link set mgmt down", machines.far[1].0));
    let finished = resumed.finish_within(2 * PATIENCE);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(
        finished.stderr.contains("the connection to it broke"),
        "{finished:?}"
    );
    ip(&format!("-n {} link set mgmt up", machines.far[1].0));
    fs::write(machines.path("pass"), "").unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let finished = run(&mut machines.taut(&["experiment", "resume", "out"]));
        if finished.code() == Some(0) {
            break;
        }
        // Resuming succeeds once the remote machine has noticed that the earlier connection is dead.
        assert!(Instant::now() < deadline, "{finished:?}");
        sleep(Duration::from_millis(500));
    }
    machines.nothing_is_left();
}

#[test]
fn a_reset_without_a_reboot_fails_the_run() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let experiment = machines.experiment(&format!(
        "[plan]\nrepetitions = 1\n[[step]]\nrun = \"true\"\n\
         [nodes.gen]\nat = \"ssh://root@{}:2222\"\nboot_limit = \"1s\"\nreset = \"true\"\n",
        ADDRESS[0]
    ));
    let finished = machines.start(&experiment, "out").finish();
    assert_ne!(finished.code(), Some(0));
    let why = "node gen: its reset did not boot it: it replies with the same boot id";
    assert!(finished.stderr.contains(why), "{finished:?}");
    machines.nothing_is_left();
}

#[test]
fn a_machine_is_reset_before_each_run() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let resets = machines.path("resets");
    let script = format!(
        "echo $TAUT_NODE >>{0}; while [ ! -e {0}.back ]; do sleep 0.1; done; rm {0}.back",
        resets.display()
    );
    let experiment = machines.experiment(&format!(
        "[plan]\nrepetitions = 2\n[[step]]\nnode = \"dut\"\nrun = \"true\"\n\
         [nodes.gen]\nat = \"ssh://root@{}:2222\"\n[nodes.dut]\nat = \"ssh://root@{}:2222\"\nboot_limit = \"20s\"\nreset = '''{script}'''\n",
        ADDRESS[0], ADDRESS[1]
    ));
    let driver = machines.start(&experiment, "out");
    for count in 1..=2 {
        let deadline = Instant::now() + PATIENCE;
        let done = || {
            fs::read_to_string(&resets)
                .unwrap_or_default()
                .lines()
                .count()
        };
        while done() < count {
            assert!(
                Instant::now() < deadline,
                "no reset {count}: {}",
                driver.stderr()
            );
            sleep(Duration::from_millis(20));
        }
        machines.cut(1);
        machines.boot_id(&format!("boot-{count}"));
        let before = machines.refused_connections();
        fs::write(machines.path("resets.back"), "").unwrap();
        // The SSH server is started only after the command has failed to connect at least once.
        while machines.refused_connections() == before {
            assert!(Instant::now() < deadline, "nobody tries to connect");
            sleep(Duration::from_millis(20));
        }
        machines.serve(1);
    }
    driver.finish().success();
    assert_eq!(fs::read_to_string(&resets).unwrap(), "dut\ndut\n");
    for (run, boot) in [("v1-r1", "boot-1"), ("v1-r2", "boot-2")] {
        let notes = machines.record(&format!("out/runs/{run}"))["notes"].to_string();
        let expected = format!("node dut booted by its reset (boot id {boot})");
        assert!(notes.contains(&expected), "{notes}");
    }
    machines.nothing_is_left();
}
