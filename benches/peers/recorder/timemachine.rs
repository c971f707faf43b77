//! Zeek's Time Machine (Maier et al., "Enriching Network Security Analysis with Time Travel", SIGCOMM 2008), if it is
//! built: <https://github.com/zeek/time-machine>. Debian's package `timemachine` is another program, which records
//! sound.
//!
//! The variable `TIMEMACHINE` gives its path if it is not on the search path.

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

/// Reports whether Zeek's Time Machine is installed: its help, unlike that of the other program of that name, has an
/// option for a settings file.
fn is_there() -> bool {
    let said = Command::new(program()).arg("-h").output();
    said.is_ok_and(|said| String::from_utf8_lossy(&said.stderr).contains("[-c config file]"))
}

/// Builds the command with the cheapest configuration: one class for all packets, no connection truncated, and no
/// index. The memory size is that of the program's example. Packets still in memory at the end, about a hundred, never
/// reach a file.
fn command(testbed: &Testbed, interface: &str, folder: &Path) -> Command {
    // Each setting has a line of its own: everything between the first and the last quote of a line is one word.
    let place = folder.display();
    let settings = format!(
        "main {{\nworkdir \"{place}\";\nindexdir \"{place}\";\nqueryfiledir \"{place}\";\nlogfile \"log\";\n\
         daemon 0;\nconsole 0;\nrmtconsole 0;\nbro_listen 0;\nlog_interval 60;\nconn_timeout 180;\n}}\n\
         class \"all\" {{\nfilter \"\";\nprecedence 1;\ncutoff no;\ndisk 2g;\nfilesize 1g;\nmem 10k;\n}}\n"
    );
    let file = folder.join("timemachine.cfg");
    std::fs::write(&file, settings).unwrap();
    let mut command = testbed.command_in_device(program());
    command.args(["-i", interface, "-c"]).arg(file);
    command
}
