//! Functions in Lua: the example does the same as the built-in function, and errors in a script are reported in a line.

use crate::support::own_functions::{Passage, outcome, refused};
use crate::support::program::Finished;
use std::fs;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns a chain with the given script, and further settings.
fn script(passage: &Passage, text: &str, more: &str) -> String {
    let file = passage.folder.path().join("mine.lua");
    fs::write(&file, text).unwrap();
    format!(
        "[[function]]\nname = \"lua\"\nfile = \"{}\"\n{more}\n",
        file.display()
    )
}

/// Returns the lines about scripts on standard error.
fn said_by_lua(finished: &Finished) -> impl Iterator<Item = &str> {
    let lines = finished.stderr.lines();
    lines.filter(|line| line.starts_with("taut: lua: "))
}

#[test]
fn the_example_script_swaps_addresses_like_the_mac_swap_function() {
    let passage = Passage::new(300);
    let (want, _) = passage.through("[[function]]\nname = \"mac-swap\"\n");
    let text = fs::read_to_string(format!("{ROOT}/examples/function-lua/mac_swap.lua")).unwrap();
    let (got, finished) = passage.through(&script(&passage, &text, ""));
    let finished = finished.success();
    assert!(got == want, "{finished:?}");
    let short = passage
        .frames
        .iter()
        .filter(|frame| frame.len() < 14)
        .count();
    assert_eq!(
        outcome(&finished, "MAC addresses swapped"),
        want.len() as u64
    );
    assert_eq!(outcome(&finished, "dropped by the script"), short as u64);
}

#[test]
fn a_script_drops_or_sends_packets_according_to_its_settings() {
    let passage = Passage::new(100);
    let text = "function process(batch)\n\
        for _, packet in ipairs(batch) do\n\
            local from = taut.settings.from\n\
            if packet.len < 14 or packet.udp.src_port >= from then packet:drop()\n\
            else packet:send_to(batch.to_port) end\n\
        end\nend\n";
    let settings = "sends = true\nsettings = { from = 1050 }";
    let (got, finished) = passage.through(&script(&passage, text, settings));
    finished.success();
    let kept = passage
        .frames
        .iter()
        .take(50)
        .filter(|frame| frame.len() >= 14);
    assert!(got == kept.cloned().collect::<Vec<_>>());
}

#[test]
fn each_script_error_is_reported_in_one_line() {
    let passage = Passage::new(64);
    for (text, said) in [
        ("x = = 1", "chain.toml:4:8: file: "),
        ("\nx = = 1", "mine.lua:2: unexpected symbol near '='"),
        ("local x = 1", "mine.lua: has no function process(batch)"),
        ("\n\nerror('odd')", "mine.lua:3: odd"),
        (
            "require('socket')",
            "mine.lua:1: attempt to call global 'require'",
        ),
    ] {
        let (_, finished) = passage.through(&script(&passage, text, ""));
        let line = refused(&finished);
        assert!(line.contains(said), "{line}");
    }
    // An error while packets pass is reported once, with its line, and every packet is counted.
    let text = "function process(batch)\n    batch[1].udp.ttl = 3\nend\n";
    let (got, finished) = passage.through(&script(&passage, text, ""));
    let said: Vec<_> = said_by_lua(&finished).collect();
    assert_eq!(said.len(), 1, "{finished:?}");
    assert!(
        said[0].contains("mine.lua:2: a packet's udp has no field ttl"),
        "{finished:?}"
    );
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    assert!(got.is_empty() && outcome(&finished, "dropped: the script failed") == 64);
    // An endless script is stopped, and the chain continues.
    let text = "function process(batch)\n    while true do end\nend\n";
    let (got, finished) = passage.through(&script(&passage, text, ""));
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("mine.lua:2: did not finish within 1 s"),
        "{finished:?}"
    );
    assert!(got.is_empty() && outcome(&finished, "dropped: the script failed") == 64);
}
