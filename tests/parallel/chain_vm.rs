//! A chain with a virtual machine for each function: packets pass, and nothing is left behind.

use crate::support::hosts::{Namespace, ip};
use crate::support::program::{PATIENCE, Program, run};
use crate::support::{is_root, scratch, taut};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};
use taut_deploy::vm::can_run_chains;

const KEY: u8 = 7;
const DATAGRAMS: u8 = 50;

/// The two namespaces at the ends of a chain.
struct Ends {
    /// The name of the chain: that of the test, with the number of this process.
    name: String,
    client: Namespace,
    server: Namespace,
}

impl Ends {
    fn make(test: &str) -> Self {
        let name = |end: &str| Namespace(format!("{test}{}-{end}", std::process::id()));
        let ends = Self {
            name: format!("{test}-test-{}", std::process::id()),
            client: name("c"),
            server: name("s"),
        };
        for namespace in [&ends.client, &ends.server] {
            ip(&format!("netns add {}", namespace.0));
        }
        ends
    }

    /// Writes the chain file; `rest` is the part that describes the virtual machine and the functions.
    fn chain(&self, folder: &Path, rest: &str) -> std::path::PathBuf {
        let file = folder.join("chain.toml");
        let text = format!(
            "name = \"{}\"\nplacement = \"vm\"\nports = [\"veth:eth0,netns={},address=10.9.0.1/24\", \
             \"veth:eth0,netns={},address=10.9.0.2/24\"]\n{rest}",
            self.name, self.client.0, self.server.0
        );
        fs::write(&file, text).unwrap();
        file
    }
}

/// Opens a socket of the kernel in a namespace.
fn socket(namespace: &Namespace, address: &'static str) -> UdpSocket {
    let file = File::open(Path::new("/run/netns").join(&namespace.0)).unwrap();
    let made = std::thread::spawn(move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        UdpSocket::bind(address).unwrap()
    });
    let socket = made.join().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn up(chain: &Path) -> Program {
    let mut program =
        Program::start(taut(&["chain", "up", "--json", "--until-stdin-closes"]).arg(chain));
    program.wait_for_stdout("\"up\"");
    program
}

/// Returns the running programs with this text in their command line.
fn processes(text: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let other = entry.file_name() != std::process::id().to_string().as_str();
        (other && line.contains(text)).then_some(line)
    });
    lines.collect()
}

fn nothing_is_left(name: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let left = processes(name);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "still there: {left:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends datagrams to the server, where each byte arrives exclusive-ored with `key`, and back, where they arrive as the
/// client sent them.
fn exchange(client: &UdpSocket, server: &UdpSocket, key: u8) {
    for number in 0..DATAGRAMS {
        let sent = [number; 200];
        client.send_to(&sent, "10.9.0.2:7000").unwrap();
        let mut got = [0; 300];
        let (length, from) = server.recv_from(&mut got).unwrap();
        assert_eq!(got[..length], [number ^ key; 200], "there");
        server.send_to(&got[..length], from).unwrap();
        let length = client.recv(&mut got).unwrap();
        assert_eq!(got[..length], sent, "and back");
    }
}

#[test]
fn a_function_in_a_virtual_machine_forwards_in_both_directions() {
    if !is_root() {
        return;
    }
    if let Err(missing) = can_run_chains() {
        println!("skipped: needs {missing}");
        return;
    }
    let (ends, folder) = (Ends::make("vm"), scratch());
    let xor = format!("[[function]]\nname = \"xor\"\nkey = {KEY}\n");
    let chain = ends.chain(folder.path(), &xor);
    let program = up(&chain);
    let client = socket(&ends.client, "10.9.0.1:7000");
    let server = socket(&ends.server, "10.9.0.2:7000");
    exchange(&client, &server, KEY);

    let text = fs::read_to_string(&chain).unwrap();
    fs::write(&chain, text.replace(&format!("key = {KEY}"), "key = 9")).unwrap();
    run(taut(&["chain", "update"]).arg(&chain)).success();
    exchange(&client, &server, 9);
    let finished = program.interrupt().success();
    let last = finished.last_json();
    let segment = &last["status"]["segments"][0];
    assert!(
        segment["counters"]["rx_packets"].as_u64() >= Some(4 * u64::from(DATAGRAMS)),
        "the machine's counters come out of it: {last}"
    );
    assert!(
        ["kvm", "emulated"]
            .map(Some)
            .contains(&segment["machine"].as_str()),
        "who runs the machine is said: {last}"
    );
    nothing_is_left(&ends.name);
    // The next chain has the same addresses.
    drop((client, server));

    // XDP programs in a machine of two cores forward as well, and after SIGKILL no process is left.
    let xdp = "[machine]\ncores = 2\n[[function]]\nname = \"forward\"\nplace = \"kernel\"\n";
    let program = up(&ends.chain(folder.path(), xdp));
    let client = socket(&ends.client, "10.9.0.1:7000");
    let server = socket(&ends.server, "10.9.0.2:7000");
    exchange(&client, &server, 0);
    assert!(!processes(&ends.name).is_empty());
    program.kill();
    nothing_is_left(&ends.name);
    run(&mut taut(&["chain", "down", &ends.name])).success();
    assert!(!Path::new("/run/taut/chains").join(&ends.name).exists());
}

/// CALVIN's own chain (Xiang et al., JSAC 2019): an XDP unit, then a DPDK unit, each in a machine.
#[test]
fn an_xdp_machine_and_a_dpdk_machine_form_a_chain() {
    if std::env::var_os("TAUT_EMULATED_CARDS").is_none() {
        println!("skipped: needs TAUT_EMULATED_CARDS=1 (boots two machines by software)");
        return;
    }
    if !is_root() {
        return;
    }
    if let Err(missing) = can_run_chains() {
        println!("skipped: needs {missing}");
        return;
    }
    let (ends, folder) = (Ends::make("vms"), scratch());
    let functions = format!(
        "[machine]\nport = \"dpdk\"\n[[function]]\nname = \"forward\"\nplace = \"kernel\"\n\
         [[function]]\nname = \"xor\"\nkey = {KEY}\n"
    );
    let program = up(&ends.chain(folder.path(), &functions));
    let client = socket(&ends.client, "10.9.0.1:7000");
    let server = socket(&ends.server, "10.9.0.2:7000");
    exchange(&client, &server, KEY);
    let last = program.interrupt().success().last_json();
    let segments = &last["status"]["segments"];
    assert_eq!(segments[0]["place"], "kernel", "{last}");
    assert_eq!(segments[1]["ports"][0], "dpdk:0000:00:10.0", "{last}");
}
