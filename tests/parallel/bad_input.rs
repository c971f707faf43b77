//! Tests of errors that are reported in one line with the right exit code, by calls that end before any measurement.

use crate::support::program::{Program, run};
use crate::support::refusals::{INPUT, LIMIT, MISSING, says, table};
use crate::support::{Sockets, as_nobody, as_nobody_works, nobody, scratch, taut};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn invalid_ports_are_refused_with_the_reason() {
    let long = format!("forward --port memif:{}", "x".repeat(200));
    table(
        &[("file", b"text")],
        &[
            (
                "forward --port mamif:x",
                INPUT,
                "no backend \"mamif\"; this build has",
            ),
            (
                "bench signalling --pfcp 127.0.0.1 --procedures park=1",
                INPUT,
                "expected a procedure and its weight, such as idle=2",
            ),
            ("forward --port eth0", INPUT, "write BACKEND:TARGET"),
            (
                "forward --port memif:a.sock,rle=client",
                INPUT,
                "memif has no option \"rle\"; it has role",
            ),
            (
                "forward --port memif:a.sock,role=boss",
                INPUT,
                "expected server or client",
            ),
            (
                "forward --port memif:a.sock,ring=33",
                INPUT,
                "ring=33 is not a power of two",
            ),
            ("forward --port memif:a.sock,id=x", INPUT, "id"),
            (
                "forward --port memif:a.sock,id=1,id=2",
                INPUT,
                "given twice",
            ),
            ("forward --port memif:", INPUT, "write memif:SOCKET-PATH"),
            ("forward --port memif:nowhere/a.sock", MISSING, "mkdir -p"),
            (
                "forward --port memif:file",
                INPUT,
                "exists and is not a socket",
            ),
            (
                "forward --port memif:folder",
                INPUT,
                "exists and is not a socket",
            ),
            (&long, INPUT, "longer than 107 bytes"),
            ("forward --port af_packet:nowhere0", MISSING, "nowhere0"),
            ("forward --port pcap:", INPUT, "write pcap:FILE"),
            ("forward --port pcap:nowhere.pcap", INPUT, "No such file"),
            ("forward --port pcap:file", INPUT, "neither pcap nor pcapng"),
            ("forward --port pcap:folder", INPUT, "is not a file"),
            (
                "forward --port pcap:folder,role=write",
                INPUT,
                "Is a directory",
            ),
            (
                "forward --port pcap:a.pcap,role=both",
                INPUT,
                "expected read or write",
            ),
            (
                "forward --port tap:a/b",
                INPUT,
                "not a valid interface name",
            ),
            (
                "forward --port tap:t0,address=here",
                INPUT,
                "as 10.1.1.1/24",
            ),
            ("forward --port pair:x,ring=33", INPUT, "not a power of two"),
            (
                "forward --port pair:x --port pair:x --port pair:x --port null:",
                INPUT,
                "choose another name",
            ),
            ("generate --port mamif:x", INPUT, "no backend"),
        ],
    );
}

#[test]
fn invalid_inspection_inputs_are_refused_with_the_reason() {
    table(
        &[
            (
                "wrong.rules",
                b"alert udp any any -> any any (sid:1;)\nalert udp any any",
            ),
            ("names.rules", b"alert udp $HERE any -> any any (sid:1;)\n"),
            ("plain.toml", b"ports = [\"null:\"]\n"),
            (
                "port.toml",
                b"ports = [\"mamif:x\"]\n[[function]]\nname = \"ips\"\n",
            ),
            (
                "time.toml",
                b"ports = [\"null:\"]\n[[function]]\nname = \"ips\"\nmax_time = \"soon\"\n",
            ),
        ],
        &[
            ("ips check /dev/null", INPUT, "expected a file of rules"),
            ("ips capacity", INPUT, "<FILE>"),
            (
                "ips capacity nowhere.rules",
                INPUT,
                "nowhere.rules: No such file",
            ),
            ("ips capacity folder", INPUT, "expected a file"),
            ("ips capacity wrong.rules", INPUT, "wrong.rules:2:"),
            ("ips capacity names.rules", INPUT, "$HERE is not defined"),
            (
                "ips capacity names.rules --variable HERE",
                INPUT,
                "expected NAME=TEXT",
            ),
            ("ips capacity nowhere.toml", INPUT, "nowhere.toml"),
            (
                "ips capacity plain.toml",
                INPUT,
                "plain.toml: the chain has no function ips",
            ),
            ("ips capacity port.toml", INPUT, "no backend \"mamif\""),
            ("ips capacity time.toml", INPUT, "expected a time such as"),
            (
                "ips capacity plain.toml names.rules",
                INPUT,
                "give no other file",
            ),
            ("ips capacity names.rules --queue 0", INPUT, "--queue"),
            ("ips capacity names.rules --burst 65", INPUT, "--burst"),
            (
                "ips capacity names.rules --io fast",
                INPUT,
                "expected a time",
            ),
            (
                "ips capacity names.rules --seconds 1e6",
                INPUT,
                "at most 3600 seconds",
            ),
            ("ips capacity plain.toml --core 5000", INPUT, "no function"),
            (
                "ips sample --traffic nowhere/file",
                INPUT,
                "nowhere/file: No such file",
            ),
            ("ips sample --traffic folder", INPUT, "Is a directory"),
        ],
    );
}

#[test]
fn invalid_options_are_refused_with_the_reason() {
    table(
        &[],
        &[
            ("frobnicate", INPUT, "unrecognized subcommand"),
            ("forward", INPUT, "no ports"),
            (
                "forward --port null: --flush nonsense",
                INPUT,
                "expected full(N, TIME), each, every(TIME) or idle(N)",
            ),
            (
                "forward --port null: --flush full(0,~1s)",
                INPUT,
                "from 1 to 64",
            ),
            (
                "forward --port null: --flush every(5d)",
                INPUT,
                "expected a time from 1ns to 1s",
            ),
            (
                "forward --port null: --core 999",
                INPUT,
                "cannot pin to CPU 999",
            ),
            (
                "forward --port null: --burst 257",
                INPUT,
                "burst 257: expected 1 to 256 packets",
            ),
            (
                "forward --port null: --function snort",
                INPUT,
                "there are aes, ats, b",
            ),
            (
                "forward --port null: --seconds nan",
                INPUT,
                "expected seconds",
            ),
            (
                "forward --port null: --port null: --port null:",
                INPUT,
                "3 ports: give one port",
            ),
            (
                "experiment robust nowhere",
                INPUT,
                "no reference experiment of this name",
            ),
            (
                "experiment robust demo --within 5",
                INPUT,
                "such as 90s, 10min or 2h",
            ),
            (
                "lab wire a=netns:x --only b:eth0",
                INPUT,
                "no node of this name",
            ),
            ("lab wire a=b", INPUT, "`b` is no address"),
            ("generate", INPUT, "--port <SPEC>|--device <ID>"),
            (
                "generate --port null: --rate 0",
                INPUT,
                "expected packets per second",
            ),
            (
                "generate --port null: --line 100k",
                INPUT,
                "expected a line rate",
            ),
            (
                "generate --port null: --rate 1M --line 500Mbit/s",
                INPUT,
                "134 % of the line",
            ),
            (
                "generate --port null: --pacing fill",
                INPUT,
                "--line 1Gbit/s",
            ),
            (
                "generate --port null: --pacing nic --pattern poisson",
                INPUT,
                "one stream with the pattern constant",
            ),
            (
                "generate --port null: --pacing nic",
                3,
                "null ports cannot limit their rate: use --pacing software",
            ),
            (
                "generate --port pair:long --port pair:long --size 9000",
                INPUT,
                "do not fit its buffers",
            ),
            (
                "generate --port null: --rate 2G",
                INPUT,
                "expected packets per second",
            ),
            (
                "generate --port null: --rate fast",
                INPUT,
                "expected packets per second",
            ),
            (
                "generate --port null: --size 10",
                INPUT,
                "bytes from 64 to 9216",
            ),
            (
                "generate --port null: --size 99999",
                INPUT,
                "bytes from 64 to 9216",
            ),
            (
                "generate --port null: --seconds soon",
                INPUT,
                "expected seconds",
            ),
            (
                "generate --port null: --core 999",
                INPUT,
                "cannot pin to CPU 999",
            ),
            (
                "generate --port null: --core 0 --cores 0",
                INPUT,
                "cannot be used with",
            ),
            (
                "generate --port null: --max-loss 1 --cores 0",
                INPUT,
                "cannot be used with",
            ),
            ("generate --port null: --cores 0,0", INPUT, "listed twice"),
            (
                "generate --port null: --cores 0,4000",
                INPUT,
                "cannot pin to CPU 4000",
            ),
            (
                "generate --port pcap:a.pcap,role=write --cores 0,1",
                INPUT,
                "2 workers cannot share it",
            ),
            (
                "generate --port null: --cores 0,1 --pattern poisson",
                INPUT,
                "pattern constant only",
            ),
            (
                "generate --port null: --cores 0,1 --tap",
                INPUT,
                "--cores sends one stream and measures nothing",
            ),
            (
                "generate --port null: --cores 0 --pacing fill --line 1Gbit/s",
                INPUT,
                "or send on one --core",
            ),
            (
                "generate --device memif-idle --cores 0,1",
                INPUT,
                "a --device has one queue",
            ),
            (
                "generate --port null: --port null: --port null:",
                INPUT,
                "one or two --port",
            ),
            ("demo --quick --full", INPUT, "cannot be used with"),
        ],
    );
}

#[test]
fn invalid_chain_files_are_refused_with_the_reason() {
    table(
        &[
            (
                "typo.toml",
                b"flush = \"each\"\nports = [\"null:\"]\nfulsh = \"each\"\n",
            ),
            ("flush.toml", b"ports = [\"null:\"]\nflush = \"ech\"\n"),
            (
                "port.toml",
                b"flush = \"each\"\nports = [\"null:\",\n  \"mamif:x\"]\n",
            ),
            (
                "function.toml",
                b"ports = [\"null:\"]\n\n[[function]]\nname = \"snort\"\n",
            ),
            (
                "outside.toml",
                b"ports = [\"null:\", \"null:\"]\n[[function]]\nname = \"nat\"\noutside = [7]\naddress = \"192.0.2.1\"\n",
            ),
            ("syntax.toml", b"ports = [\n"),
            ("binary.toml", b"\xff\xfe\x00\x80"),
        ],
        &[
            (
                "forward typo.toml",
                INPUT,
                "typo.toml:3:1: unknown key `fulsh`",
            ),
            ("forward flush.toml", INPUT, "flush.toml:2:9: flush \"ech\""),
            ("forward port.toml", INPUT, "port.toml:3:3: port \"mamif:x\""),
            (
                "forward function.toml",
                INPUT,
                "function.toml:4:8: no function \"snort\"",
            ),
            (
                "forward outside.toml",
                INPUT,
                "outside.toml:4:11: outside = [7]: this chain has ports 0 and 1",
            ),
            (
                "forward --port null: --port null: --function rlnc(encode=[9])",
                INPUT,
                "encode = [9]: this chain has ports 0 and 1",
            ),
            ("forward syntax.toml", INPUT, "syntax.toml:1"),
            ("forward binary.toml", INPUT, "binary.toml: is not a text file: expected TOML in UTF-8"),
            ("forward nowhere.toml", INPUT, "nowhere.toml: No such file"),
            ("forward folder", INPUT, "folder: Is a directory"),
            (
                "forward typo.toml --function mac-swap",
                INPUT,
                "cannot be used with",
            ),
        ],
    );
}

#[test]
fn each_command_names_missing_privileges_and_a_remedy() {
    if !as_nobody_works() {
        return;
    }
    let folder = scratch();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let edge = "placement = \"namespaces\"\n\
                ports = [\"veth:tw0,address=10.0.0.1/24\", \"veth:tw1,address=10.0.0.2/24\"]\n\
                [[function]]\nname = \"xor\"\nkey = 7\n";
    fs::write(folder.path().join("edge.toml"), edge).unwrap();
    let closed = Path::new("/usr/share/taut-test");
    assert!(!closed.exists());
    let mut rows = vec![
        (
            "forward --port af_packet:lo",
            MISSING,
            "root or CAP_NET_RAW (run with sudo)",
        ),
        (
            "forward --port tap:t0",
            MISSING,
            "root or CAP_NET_ADMIN (run with sudo)",
        ),
        (
            "forward --port null: --port veth:e0",
            MISSING,
            "taut chain up FILE",
        ),
        (
            "generate --port af_packet:lo",
            MISSING,
            "root or CAP_NET_RAW (run with sudo)",
        ),
        (
            "generate --device veth-bridge",
            MISSING,
            "run as root, or with CAP_SYS_ADMIN",
        ),
        (
            "capture lo --write -",
            MISSING,
            "root or CAP_NET_RAW (run with sudo)",
        ),
        (
            "capture status",
            MISSING,
            "start one with `taut capture INTERFACE`",
        ),
        (
            "bench comparison --device veth-bridge",
            MISSING,
            "run as root, or with CAP_SYS_ADMIN",
        ),
        (
            "bench latency --port af_packet:lo --port af_packet:lo",
            MISSING,
            "root or CAP_NET_RAW",
        ),
        (
            "bench generator --only taut-af-packet",
            MISSING,
            "run as root, or with CAP_SYS_ADMIN",
        ),
        (
            "chain up edge.toml",
            MISSING,
            "run as root, or with CAP_SYS_ADMIN",
        ),
        (
            "chain up edge.toml --detach",
            MISSING,
            "run as root, or with CAP_SYS_ADMIN",
        ),
        (
            "route --control none.sock list",
            MISSING,
            "start `taut forward` with the function route",
        ),
        (
            "bearer --control none.sock list",
            MISSING,
            "start `taut forward` with the function gtpu",
        ),
        (
            "ips status --control none.sock",
            MISSING,
            "start `taut forward` with the function ips",
        ),
        (
            "probe client 127.0.0.1:9",
            MISSING,
            "start `taut probe server` there",
        ),
        ("tap lo", MISSING, "needs an end of a veth pair"),
        (
            "tune apply --cpus 0",
            MISSING,
            "run: sudo taut tune apply --cpus 0",
        ),
        ("tune revert", MISSING, "run: sudo taut tune revert"),
        (
            "tune noise --cpus 0 --for 100ms --fifo 50",
            MISSING,
            "run as root, or with CAP_SYS_NICE",
        ),
        ("doctor", MISSING, "the fix is printed below each"),
        (
            "man /usr/share/taut-test",
            MISSING,
            "/usr/share/taut-test: Permission denied",
        ),
        (
            "experiment check stylianopoulos-fig2",
            MISSING,
            "see above what",
        ),
    ];
    if cfg!(feature = "xdp") {
        rows.extend([
            ("forward --port af_xdp:lo", MISSING, "(run with sudo)"),
            (
                "forward --in-kernel --port af_xdp:lo --port af_xdp:tw9",
                MISSING,
                "(run with sudo)",
            ),
        ]);
    }
    let cpus = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if cpus.trim() == "0" {
        rows.retain(|(line, ..)| !line.starts_with("tune "));
    }
    for (line, code, fragment) in rows {
        println!("taut {line}");
        let words: Vec<&str> = line.split(' ').collect();
        says(
            &run(as_nobody(&words)
                .current_dir(folder.path())
                .env("TMPDIR", folder.path())
                .env_remove("XDG_RUNTIME_DIR")),
            code,
            fragment,
        );
    }
    let dpdk = run(&mut as_nobody(&["forward", "--port", "dpdk:net_tap0"]));
    // A missing DPDK is reported.
    says(&dpdk, MISSING, "needs");
    // With `taskset`, the process may use only one core, which is too few for two workers.
    let core = taut_host::choose_cores().generator.to_string();
    let on_one = ["taskset", "-c", &core, env!("CARGO_BIN_EXE_taut")];
    let two = [
        "forward",
        "--port",
        "null:",
        "--port",
        "null:",
        "--workers",
        "2",
    ];
    let refused = run(&mut nobody(&[&on_one[..], &two].concat()));
    says(
        &refused,
        INPUT,
        "this process may use 1 (/proc/self/status, Cpus_allowed_list); use 1 or fewer workers, or allow more cores",
    );
}

#[test]
fn invalid_control_loops_are_refused_with_the_reason() {
    let plant = include_str!("../../crates/control/src/plant/drone-axis.toml");
    let other = |from: &str, to: &str| plant.replacen(from, to, 1).into_bytes();
    table(
        &[
            ("zero.toml", &other("\"10ms\"", "\"0ms\"")),
            ("shape.toml", &other("a = [", "a = [[1.0],")),
            ("reach.toml", &other("[1500.0]", "[0.0]")),
            ("text.toml", b"\xff\xfe"),
        ],
        &[
            ("control run --plant robt", INPUT, "did you mean `robot`"),
            ("control run --plant zero.toml", INPUT, "period"),
            ("control run --plant shape.toml", INPUT, "a: has"),
            (
                "control run --plant reach.toml",
                INPUT,
                "inputs do not reach every unstable state",
            ),
            ("control run --plant text.toml", INPUT, "not a text file"),
            ("control run --plant none.toml", INPUT, "none.toml"),
            ("control run --virtual --strategy smith", INPUT, "unstable"),
            (
                "control run --virtual --plant conveyor --filter original",
                INPUT,
                "kalman",
            ),
            ("control run --apply arrival", INPUT, "--protocol taut"),
            ("control run --delay 1ms", INPUT, "--virtual"),
            ("control run --cores 1", INPUT, "--cores"),
            (
                "control run --plant-in nowhere",
                INPUT,
                "no such network namespace",
            ),
            ("control run --virtual --period 1us", INPUT, "period"),
            ("control run --virtual --loss 5", INPUT, "fraction"),
            ("control run --strategy best", INPUT, "one of"),
            (
                "control run --virtual --delay 40ms",
                LIMIT,
                "every command arrived too late: 80.0 ms after its reading at best",
            ),
            (
                "control run --virtual --loss 100%",
                LIMIT,
                "no command arrived: all rounds were lost",
            ),
            ("control plant", INPUT, "controller"),
            ("control plant 1.2.3.4.5", INPUT, "no address"),
            (
                "control plant 127.0.0.1 --bind 192.0.2.1:1",
                INPUT,
                "--bind",
            ),
            ("control controller --bind 192.0.2.1:1", INPUT, "--bind"),
            ("control challenge --axis luck", INPUT, "one of"),
            ("control show folder", INPUT, "no summary.json"),
            ("control show nothing", INPUT, "no such plant"),
        ],
    );
}

#[test]
fn invalid_laboratory_inputs_are_refused_with_the_reason() {
    let at = "--to http://127.0.0.1:1 --token-file";
    let rows = [
        ("lab serve nowhere.toml".to_owned(), INPUT, "No such file"),
        (
            "lab serve wrong.toml".to_owned(),
            INPUT,
            "wrong.toml:2:1: unknown key `nods`",
        ),
        (
            "lab serve none.toml".to_owned(),
            INPUT,
            "users: there are none",
        ),
        (
            "lab token a/b".to_owned(),
            INPUT,
            "user \"a/b\": expected a name",
        ),
        (
            "lab token a --out token".to_owned(),
            INPUT,
            "token: File exists",
        ),
        (
            "lab nodes --token-file token".to_owned(),
            INPUT,
            "which laboratory?",
        ),
        (
            "lab nodes --to ftp://x --token-file token".to_owned(),
            INPUT,
            "address of a service",
        ),
        (
            format!("lab nodes {at} nowhere"),
            INPUT,
            "nowhere: No such file",
        ),
        (format!("lab nodes {at} none.toml"), INPUT, "no single word"),
        (
            format!("lab nodes {at} token"),
            MISSING,
            "Connection refused",
        ),
        (format!("lab reserve {at} token"), INPUT, "<NODES>"),
        (
            format!("lab reserve a --for 0s {at} token"),
            INPUT,
            "a length of time such as",
        ),
        (
            format!("lab reserve a --until soon {at} token"),
            INPUT,
            "a time in UTC such as",
        ),
        (
            format!("lab release ../1 {at} token"),
            INPUT,
            "is no reservation",
        ),
        (
            format!("experiment submit nowhere.toml {at} token"),
            INPUT,
            "no file nowhere.toml",
        ),
        (format!("experiment watch one {at} token"), INPUT, "one"),
    ];
    let rows: Vec<_> = rows
        .iter()
        .map(|(line, code, part)| (line.as_str(), *code, *part))
        .collect();
    table(
        &[
            ("wrong.toml", b"folder = \"x\"\nnods = 1\n"),
            ("none.toml", b"folder = \"x\"\n[nodes.a]\nat = \"local\"\n"),
            ("token", b"0123\n"),
        ],
        &rows,
    );
}

#[test]
fn invalid_arguments_of_doctor_functions_and_man_are_refused() {
    table(
        &[("file", b"text")],
        &[
            ("doctor now", INPUT, "unexpected argument 'now'"),
            ("functions nta", INPUT, "invalid value 'nta' for '[NAME]'"),
            ("man", INPUT, "<FOLDER>"),
            ("man file", MISSING, "file: File exists"),
            ("man file/pages", INPUT, "file/pages: Not a directory"),
        ],
    );
}

#[test]
fn memif_sockets_in_use_or_of_another_user_are_refused() {
    let sockets = Sockets::new();
    let [path, _] = sockets.paths().map(|p| p.display().to_string());
    let mut first = Program::start(&mut taut(&["forward", "--port", &format!("memif:{path}")]));
    first.wait_for_stdout("forwarding");
    let second = run(&mut taut(&["forward", "--port", &format!("memif:{path}")]));
    says(&second, MISSING, "one listens on this path: stop it");
    if !as_nobody_works() {
        return;
    }
    // All users may enter the socket's folder, but only the first user may open the socket.
    fs::set_permissions(
        Path::new(&path).parent().unwrap(),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let other = run(&mut as_nobody(&[
        "generate",
        "--port",
        &format!("memif:{path},role=client"),
        "--wait",
        "0.3",
    ]));
    says(&other, MISSING, "the socket belongs to user 0");
}
