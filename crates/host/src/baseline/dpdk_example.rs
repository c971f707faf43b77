//! DPDK's own examples over memif, built from the sources of Debian's package `dpdk-doc`.

use super::step::words;
use super::{CommandValues, Step};
use crate::command::{is_installed, run};
use crate::net::testbed::{DEVICE_MACS, mac_text};
use crate::permissions::Missing;
use crate::testpmd::{Memory, driver_library};
use std::path::Path;

/// The folder of DPDK's example sources, with one subfolder per example.
const SOURCES: &str = "/usr/share/dpdk/examples";

/// A `sed` program that shortens an example's link check from every 100 ms to every 1 ms. An example forwards nothing
/// before the check, so the generator's first packets would be lost.
const SOONER: &str = "s/^#define CHECK_INTERVAL 100/#define CHECK_INTERVAL 1/;s/^#define MAX_CHECK_TIME 90/#define MAX_CHECK_TIME 9000/";

/// Returns the DPDK version with which examples are built on this machine, or the missing requirement.
pub(super) fn probe() -> Result<String, Missing> {
    let missing = |what: &str| {
        Missing {
        what: what.to_owned(),
        how_to_get_it: "apt-get install --no-install-recommends gcc pkg-config libdpdk-dev 'librte-net-memif*' dpdk-doc".to_owned(),
    }
    };
    if let Some(program) = ["cc", "pkg-config", "sed"]
        .into_iter()
        .find(|it| !is_installed(it))
    {
        return Err(missing(&format!("`{program}` is not on the search path")));
    }
    let version = run("pkg-config", &["--modversion", "libdpdk"]);
    let version = version.map_err(|_| missing("DPDK's libdpdk is not installed"))?;
    let driver = driver_library("net_memif");
    driver.ok_or_else(|| missing("DPDK's driver net_memif is not installed"))?;
    if !Path::new(SOURCES).exists() {
        return Err(missing(&format!("no {SOURCES}")));
    }
    Ok(format!("built here on DPDK {}", version.trim()))
}

/// Returns the step that builds an example from its `main.c`, changed by the `sed` program `change` (none if empty),
/// and the source files in `others`.
pub(super) fn build(place: &CommandValues, name: &str, change: &str, others: &[&str]) -> Step {
    let folder = format!("{SOURCES}/{name}");
    let [main, program] = [format!("{name}.c"), name.to_owned()]
        .map(|it| place.folder.join(it).display().to_string());
    let others: String = others.iter().map(|it| format!(" {folder}/{it}")).collect();
    let flags = "-O3 -march=native -DALLOW_EXPERIMENTAL_API";
    let dpdk = "$(pkg-config --cflags --libs libdpdk)";
    let build = format!(
        "sed '{SOONER};{change}' {folder}/main.c > {main} && cc {flags} -I{folder} -I{SOURCES}/common -o {program} {main}{others} {dpdk}"
    );
    Step::Run(words(&["sh", "-c", &build]))
}

/// Returns the command line of a built example: the memif links, followed by the example's own `arguments`.
pub(super) fn line(place: &CommandValues, name: &str, arguments: &[&str]) -> Vec<String> {
    let mut line = words(&[
        "env",
        &format!("RUNTIME_DIRECTORY={}", place.folder.display()),
        "stdbuf",
        "-oL",
        &place.folder.join(name).display().to_string(),
        "--no-pci",
        "--no-telemetry",
        "--lcores",
        &format!("0@{}", place.cpu),
    ]);
    line.extend(Memory::Usual.words_here());
    for (number, end) in place.ends.iter().enumerate() {
        let mac = mac_text(DEVICE_MACS[number]);
        line.push(format!(
            "--vdev=net_memif{number},role=server,id=0,socket={end},socket-abstract=no,mac={mac}"
        ));
    }
    line.push("--".to_owned());
    line.extend(words(arguments));
    line
}
