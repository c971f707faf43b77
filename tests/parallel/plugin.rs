//! Functions in shared libraries. The examples do the same as the built-in function, and errors in a library are
//! reported in a line. A faulty library loses its packets, or its process, and affects nothing else.

use crate::support::leftovers::Watch;
use crate::support::own_functions::{
    Passage, example_in_c, example_in_rust, frames, library_of, outcome, refused, write_capture,
};
use crate::support::program::{Finished, PATIENCE, Program, run};
use crate::support::{scratch, taut};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

fn plugin(library: &Path, more: &str) -> String {
    format!(
        "[[function]]\nname = \"plugin\"\nfile = \"{}\"\n{more}\n",
        library.display()
    )
}

#[test]
fn the_example_plugins_swap_addresses_like_the_mac_swap_function() {
    let passage = Passage::new(300);
    let (want, _) = passage.through("[[function]]\nname = \"mac-swap\"\n");
    let short = passage
        .frames
        .iter()
        .filter(|frame| frame.len() < 14)
        .count();
    assert!(short > 10 && want.len() == 300 - short);
    for (language, library) in [
        ("C", example_in_c(passage.folder.path())),
        ("Rust", example_in_rust(passage.folder.path())),
    ] {
        let (got, finished) = passage.through(&plugin(&library, ""));
        let finished = finished.success();
        assert!(got == want, "{language}: {finished:?}");
        assert_eq!(
            outcome(&finished, "MAC addresses swapped"),
            want.len() as u64
        );
        assert_eq!(outcome(&finished, "passed"), want.len() as u64);
        assert_eq!(outcome(&finished, "dropped by the plugin"), short as u64);
        // The library's own reason is printed in one line.
        let (_, finished) = passage.through(&plugin(&library, "settings = \"some\""));
        let line = refused(&finished);
        assert!(
            line.contains("libmac_swap.so: settings: there are none"),
            "{line}"
        );
    }
}

/// A library whose parts are defined by macros; parts without a macro do nothing.
const PARTS: &str = "#include <taut_function.h>\n#include <stddef.h>\n\
    #ifndef ABI\n#define ABI TAUT_FUNCTION_ABI\n#endif\n\
    #ifndef MAKE\n#define MAKE\n#endif\n\
    #ifndef EACH\n#define EACH\n#endif\n\
    uint32_t taut_function_abi(void) { return ABI; }\n\
    static uint64_t seen;\n\
    void *taut_function_make(const char *settings, const struct taut_host *host)\n\
    { (void)settings; (void)host; MAKE return &seen; }\n\
    #ifndef WITHOUT_PROCESS\n\
    void taut_function_process(void *state, struct taut_packet *packets, uint32_t count,\n\
    const struct taut_batch *batch)\n\
    { (void)state; (void)batch;\n\
    for (struct taut_packet *p = packets; p < packets + count; p++) { seen++; EACH } }\n\
    #endif\n\
    void taut_function_free(void *state) { (void)state; }\n";

fn parts(folder: &Path, name: &str, parts: &str) -> std::path::PathBuf {
    library_of(&format!("{parts}\n{PARTS}"), folder, name)
}

#[test]
fn each_plugin_error_is_reported_in_one_line() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let good = parts(folder.path(), "good", "");
    let mut foreign = fs::read(&good).unwrap();
    foreign[18..20].copy_from_slice(&243_u16.to_le_bytes());
    fs::write(path("foreign.so"), foreign).unwrap();
    let mut cut = fs::read(&good).unwrap();
    cut.truncate(100);
    fs::write(path("cut.so"), cut).unwrap();
    fs::write(path("text.so"), "text").unwrap();
    parts(folder.path(), "old", "#define ABI 0");
    parts(folder.path(), "new", "#define ABI 2");
    parts(folder.path(), "partly", "#define WITHOUT_PROCESS");
    parts(folder.path(), "silent", "#define MAKE return NULL;");
    parts(
        folder.path(),
        "said",
        "#define MAKE host->fail(host, \"not on\\n a Sunday\"); return NULL;",
    );
    parts(
        folder.path(),
        "unnamed",
        "#define MAKE host->counter(host, \"\");",
    );
    for (name, said) in [
        ("none.so", "cannot read "),
        ("text.so", "is not a shared library"),
        ("foreign.so", "is for RISC-V, this taut for "),
        ("cut.so", "cannot load "),
        (
            "libold.so",
            "uses version 0 of the interface, but this taut uses 1: rebuild it with",
        ),
        (
            "libnew.so",
            "uses version 2 of the interface, but this taut uses 1",
        ),
        ("libpartly.so", "has no function taut_function_process"),
        ("libsilent.so", "gave no reason"),
        ("libsaid.so", "libsaid.so: not on  a Sunday"),
        (
            "libunnamed.so",
            "counter \"\": expected 1 to 60 printable characters",
        ),
    ] {
        let function = format!("plugin(file={})", path(name).display());
        let ports = ["--port", "null:", "--port", "null:"];
        let words = [
            &["forward"],
            &ports[..],
            &["--function", &function, "--seconds", "1"],
        ]
        .concat();
        let finished = run(&mut taut(&words));
        let line = refused(&finished);
        assert!(line.contains(said) && line.contains(name), "{line}");
    }
    // Errors that are found without running the library are reported with file and line.
    let chain = path("chain.toml");
    let text = format!(
        "ports = [\"null:\", \"null:\"]\n{}",
        plugin(&path("none.so"), "")
    );
    fs::write(&chain, text).unwrap();
    let finished = run(&mut taut(&["forward", chain.to_str().unwrap()]));
    assert!(
        refused(&finished).contains("chain.toml:4:8: file: cannot read "),
        "{finished:?}"
    );
}

#[test]
fn a_plugin_with_invalid_results_loses_only_its_packets() {
    let passage = Passage::new(200);
    let folder = passage.folder.path();
    for (name, each, counted) in [
        ("verdict", "p->verdict = 77;", "dropped: no such verdict"),
        (
            "length",
            "p->length = 65535;",
            "dropped: outside of the packet's memory",
        ),
        (
            "nothing",
            "p->length = 0;",
            "dropped: outside of the packet's memory",
        ),
        (
            "before",
            "p->data -= 100000;",
            "dropped: outside of the packet's memory",
        ),
        (
            "null",
            "p->data = NULL;",
            "dropped: outside of the packet's memory",
        ),
        ("port", "p->port = 1;", "dropped: no such port to send to"),
    ] {
        let lies = format!("#define EACH if (seen % 2) {{ {each} }}");
        let library = parts(folder, name, &lies);
        let (got, finished) = passage.through(&plugin(&library, ""));
        let finished = finished.success();
        assert_eq!(outcome(&finished, counted), 100, "{name}: {finished:?}");
        assert_eq!(outcome(&finished, "passed"), 100, "{name}");
        // The library returns an invalid result for every second frame; the other frames leave unchanged.
        let want: Vec<_> = passage.frames.iter().skip(1).step_by(2).cloned().collect();
        assert!(got == want, "{name}: {} frames", got.len());
    }
    // A library may truncate frames, and send them to a port if the chain allows that. Frames that it punts in a chain
    // without a slow path are dropped and counted.
    let library = parts(
        folder,
        "cuts",
        "#define EACH p->data += 1; p->length -= 2; p->port = 1;",
    );
    let (got, finished) = passage.through(&plugin(&library, "sends = true"));
    finished.success();
    let want = passage
        .frames
        .iter()
        .map(|frame| frame[1..frame.len() - 1].to_vec());
    assert!(got == want.collect::<Vec<_>>());
    let library = parts(folder, "punts", "#define EACH p->verdict = TAUT_PUNT;");
    let (got, finished) = passage.through(&plugin(&library, ""));
    let summary = finished.success().last_json();
    assert!(got.is_empty());
    assert_eq!(summary["counters"]["dropped_punted"], 200, "{summary}");
}

#[test]
fn each_worker_has_a_separate_plugin_state() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: needs two cores");
        return;
    }
    let folder = scratch();
    let counts = "#define MAKE *host->counter(host, host->worker == 0 ? \"first\" : \"second\") += host->workers;";
    let library = parts(folder.path(), "counts", counts);
    let function = format!("plugin(file={})", library.display());
    let words = [
        "forward",
        "--port",
        "null:",
        "--port",
        "null:",
        "--function",
        &function,
    ];
    let more = [
        "--workers",
        "2",
        "--wait",
        "sleep(1ms)",
        "--seconds",
        "0.1",
        "--quiet",
        "--json",
    ];
    let finished = run(&mut taut(&[&words[..], &more].concat())).success();
    for worker in ["first", "second"] {
        assert_eq!(outcome(&finished, worker), 2, "{finished:?}");
    }
}

#[test]
fn a_plugin_can_extend_packets_into_headroom_and_tailroom() {
    // Packets of `null` are in taut's own memory, which has headroom and tailroom.
    let folder = scratch();
    let grows = "#define EACH p->data -= p->headroom; \
        p->length = (uint16_t)(p->length + p->headroom + p->tailroom);";
    let library = parts(folder.path(), "grows", grows);
    let function = format!("plugin(file={})", library.display());
    let words = [
        "forward",
        "--port",
        "null:source=1",
        "--port",
        "null:",
        "--function",
        &function,
    ];
    let more = [
        "--seconds",
        "0.1",
        "--quiet",
        "--json",
        "--wait",
        "sleep(1ms)",
    ];
    let finished = run(&mut taut(&[&words[..], &more].concat())).success();
    let wrong = outcome(&finished, "dropped: outside of the packet's memory");
    assert!(
        outcome(&finished, "passed") > 0 && wrong == 0,
        "{finished:?}"
    );
}

/// Builds a chain of three processes, the second of which has a library.
fn chain_with(folder: &Path, name: &str, library: &Path) -> std::path::PathBuf {
    let path = |name: &str| folder.join(name).display().to_string();
    write_capture(&folder.join("in.pcap"), &frames(100), 10_000);
    let file = folder.join("chain.toml");
    let forward = "[[function]]\nname = \"forward\"\n";
    let text = format!(
        "name = \"{name}\"\nplacement = \"processes\"\n\
         ports = [\"pcap:{},timing=original,repeat=0\", \"pcap:{},role=write\"]\n{forward}{}{forward}",
        path("in.pcap"),
        path("out.pcap"),
        plugin(library, "")
    );
    fs::write(&file, text).unwrap();
    file
}

fn status(name: &str) -> serde_json::Value {
    let finished = run(&mut taut(&["chain", "status", name, "--json"])).success();
    let all: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    all[0]["segments"].clone()
}

fn is_up(name: &str) -> bool {
    run(&mut taut(&["chain", "status", name])).code() == Some(0)
}

#[test]
fn a_crashing_plugin_ends_only_its_own_process() {
    let watch = Watch::begin();
    let folder = scratch();
    const CRASH: &str = "{ static int *volatile nowhere; *nowhere = 1; }";
    // A crash during the start is reported in one line with the segment, and nothing is left behind.
    let name = format!("t{}-crash", std::process::id());
    let library = parts(folder.path(), "crash", &format!("#define MAKE {CRASH}"));
    let chain = chain_with(folder.path(), &name, &library);
    let finished: Finished = run(watch.over(taut(&["chain", "up"]).arg(&chain)));
    assert_ne!(finished.code(), Some(0), "{finished:?}");
    let said = finished.stderr.trim_end();
    assert_eq!(
        said, "taut: segment 2-plugin: ended by signal 11",
        "{finished:?}"
    );
    assert!(!is_up(&name));
    watch.nothing_is_left();
    // After a later crash, the other segments continue and the crashed segment is restarted.
    let library = parts(
        folder.path(),
        "later",
        &format!("#define EACH if (seen > 20) {CRASH}"),
    );
    let chain = chain_with(folder.path(), &name, &library);
    let mut up = Program::start(watch.over(taut(&["chain", "up", "--json"]).arg(&chain)));
    up.wait_for_stdout("\"event\":\"up\"");
    let deadline = Instant::now() + PATIENCE;
    let segments = loop {
        let segments = status(&name);
        if segments[1]["restarts"].as_u64().unwrap() > 1 {
            break segments;
        }
        assert!(Instant::now() < deadline, "{segments}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(segments[1]["name"], "2-plugin");
    assert_eq!(segments[1]["last_words"], "ended by signal 11");
    for neighbour in [0, 2] {
        assert_eq!(segments[neighbour]["restarts"], 0, "{segments}");
    }
    let finished = up.interrupt().success();
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    watch.nothing_is_left();
}
