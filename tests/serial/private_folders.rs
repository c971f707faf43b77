//! Folders, locks and names that another user has created before: they are neither used nor damaged, and they cannot
//! prevent a measurement.

use crate::support::program::{Finished, Program, run};
use crate::support::{alone, alone_and_root, scratch, taut};
use std::fs::{self, Permissions};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// User ID of `nobody`, the attacker who creates files in advance.
const ATTACKER: u32 = 65534;
/// User ID of another user without root privileges.
const VICTIM: u32 = 12345;
const PRECIOUS: &str = "precious";

/// A folder that everybody may write to, like `/tmp`, with a file of the victim.
struct Shared {
    folder: TempDir,
}

impl Shared {
    fn new(victim: u32) -> Self {
        let shared = Self { folder: scratch() };
        fs::set_permissions(shared.folder.path(), Permissions::from_mode(0o1777)).unwrap();
        let precious = shared.path("precious");
        fs::write(&precious, PRECIOUS).unwrap();
        chown(&precious, Some(victim), Some(victim)).unwrap();
        shared
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a line of shell as the attacker.
    #[track_caller]
    fn attack(&self, line: &str) {
        let mut shell = Command::new("sh");
        shell.args(["-ec", line]).current_dir(self.folder.path());
        run(shell.uid(ATTACKER).gid(ATTACKER)).success();
    }

    #[track_caller]
    fn assert_unharmed(&self, finished: &Finished) {
        let text = fs::read_to_string(self.path("precious")).unwrap();
        assert_eq!(text, PRECIOUS, "{finished:?}");
    }
}

#[test]
fn output_of_other_programs_is_not_stored_in_planted_folders() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let shared = Shared::new(0);
    // A stub replaces each real program, as only the path of the results matters.
    let bin = shared.path("bin");
    fs::create_dir(&bin).unwrap();
    for program in ["oslat", "cyclictest"] {
        let path = bin.join(program);
        fs::write(&path, "#!/bin/sh\necho here >&2\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
    let search = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let line = "echo $$; read go; exec \"$0\" tune noise --cpus 0 --for 1s --no-trace --compare";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", line, env!("CARGO_BIN_EXE_taut")])
        .env("PATH", search)
        .env("TMPDIR", shared.folder.path());
    let mut program = Program::start(&mut shell);
    program.wait_for_stdout("\n");
    let number = program.stdout().trim().to_owned();
    shared.attack(&format!(
        "mkdir -m 777 taut-noise-{number} && ln -s ../precious taut-noise-{number}/errors && touch taut-noise-{number}/own"
    ));
    program.say("go");
    let finished = program.finish();
    shared.assert_unharmed(&finished);
    let planted = shared.path(&format!("taut-noise-{number}/own"));
    assert!(planted.exists(), "{finished:?}");
}

#[test]
fn a_chain_refuses_to_start_in_another_users_folder() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let shared = Shared::new(VICTIM);
    let program = shared.path("taut");
    fs::copy(env!("CARGO_BIN_EXE_taut"), &program).unwrap();
    let chain = shared.path("x.toml");
    let text = "name = \"x\"\nports = [\"null:\", \"null:\"]\n[[function]]\nname = \"forward\"\n";
    fs::write(&chain, text).unwrap();
    let chain = chain.to_str().unwrap();
    let victim = |words: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(words)
            .uid(VICTIM)
            .gid(VICTIM)
            .env_remove("XDG_RUNTIME_DIR")
            .env("TMPDIR", shared.folder.path());
        command
    };
    let own = format!("taut-{VICTIM}");
    let plant = [
        // A folder of the attacker's, with a lock that is a link.
        format!(
            "mkdir -m 777 {own}; mkdir -m 777 {own}/chains; mkdir -m 777 {own}/chains/x; ln -s ../../../precious {own}/chains/x/lock"
        ),
        // A link to such a folder.
        format!("mkdir -m 777 other; ln -s other {own}"),
        // A file instead of a folder.
        format!("touch {own}"),
    ];
    for planted in plant {
        shared.attack(&planted);
        for words in [
            &["chain", "up", chain][..],
            &["chain", "status"],
            &["chain", "down", "x"],
        ] {
            let finished = run(&mut victim(words));
            shared.assert_unharmed(&finished);
            assert_eq!(
                finished.code(),
                Some(3),
                "{planted}: {words:?}: {finished:?}"
            );
            let said = &finished.stderr;
            assert_eq!(said.trim_end().lines().count(), 1, "{said}");
            assert!(
                said.contains(&own) && said.contains("XDG_RUNTIME_DIR"),
                "{said}"
            );
        }
        shared.attack(&format!("rm -rf {own} other"));
    }
    let mut up = Program::start(&mut victim(&["chain", "up", chain, "--json"]));
    up.wait_for_stdout("\"event\":\"up\"");
    let mode = |path: &str| fs::symlink_metadata(shared.path(path)).unwrap().mode() & 0o777;
    for folder in [
        own.clone(),
        format!("{own}/chains"),
        format!("{own}/chains/x"),
    ] {
        assert_eq!(mode(&folder), 0o700, "{folder}");
    }
    assert_eq!(mode(&format!("{own}/chains/x/control.sock")), 0o600);
    assert_eq!(mode(&format!("{own}/chains/x/lock")), 0o600);
    up.interrupt();
    assert!(!shared.path(&format!("{own}/chains/x")).exists());
}

#[test]
fn abstract_sockets_of_other_users_do_not_lock_the_machine() {
    let _turn = alone();
    // Any user can hold these locks.
    let _taken = ["taut-experiment", "taut-measuring"].map(|name| {
        let name = SocketAddr::from_abstract_name(name).unwrap();
        UnixListener::bind_addr(&name)
    });
    let folder = scratch();
    let hold = |folder: &Path| taut(&["node", "hold", "--folder", folder.to_str().unwrap()]);
    let first = loop {
        let mut first = Program::start(&mut hold(folder.path()));
        first.wait_until("an answer", |out, errors| {
            out.contains("held ") || errors.contains("wait for it to end")
        });
        if first.stdout().contains("held ") {
            break first;
        }
        // Another program measures at the moment, so this test tries again.
    };
    let second = run(&mut hold(folder.path()));
    assert_eq!(second.code(), Some(3), "{second:?}");
    let holder = format!("in use by process {}", first.id());
    assert!(second.stderr.contains(&holder), "{second:?}");
    assert_eq!(second.stderr.trim_end().lines().count(), 1, "{second:?}");
    // The lock on the machine is released, however its holder ends.
    first.kill();
    let mut third = Program::start(&mut hold(folder.path()));
    third.wait_for_stdout("held ");
    third.close_input();
    third.finish().success();
}
