//! Zeek's Time Machine (Maier et al., "Enriching Network Security Analysis with Time Travel", SIGCOMM 2008), where it is built:
//! <https://github.com/zeek/time-machine>. Debian's package `timemachine` is another program, which records sound.
//!
//! `TIMEMACHINE` names it where it is not on the path.

use super::Recorder;
use std::path::Path;
use std::process::Command;
use taut_host::Testbed;

pub const RECORDER: Recorder = Recorder {
    name: "Time Machine",
    needs: "timemachine (zeek/time-machine, built from its source; TIMEMACHINE=PATH)",
    is_there,
    command,
};

fn program() -> String {
    std::env::var("TIMEMACHINE").unwrap_or_else(|_| "timemachine".to_string())
}

/// Whether it is the one that asks for a file of settings.
fn is_there() -> bool {
    let said = Command::new(program()).arg("-h").output();
    said.is_ok_and(|said| String::from_utf8_lossy(&said.stderr).contains("[-c config file]"))
}

/// One class for all packets, nothing of any connection cut off, and no index: what costs the least.
fn command(testbed: &Testbed, interface: &str, folder: &Path) -> Command {
    let settings = format!(
        "main {{ workdir \"{0}\"; indexdir \"{0}\"; queryfiledir \"{0}\"; logfile \"log\"; daemon 0; console 0;\n\
         rmtconsole 0; bro_listen 0; log_interval 60; conn_timeout 180; }}\n\
         class \"all\" {{ filter \"\"; precedence 1; cutoff no; disk 2g; filesize 1g; mem 64m; }}\n",
        folder.display()
    );
    let file = folder.join("timemachine.cfg");
    std::fs::write(&file, settings).unwrap();
    let mut command = testbed.command_in_device(program());
    command.args(["-i", interface, "-c"]).arg(file);
    command
}
