//! Tests of the XDP versions of all functions.
#![allow(clippy::unwrap_used)]

use crate::FUNCTIONS;

#[test]
fn functions_without_kernel_support_are_refused_in_the_kernel() {
    for entry in FUNCTIONS.0 {
        let settings = match entry.name {
            "mac-rewrite" => "source = \"02:00:00:00:00:aa\"",
            "gtpu" => "address = \"192.0.2.1\"",
            "route" => {
                "interface = [{ mac = \"02:00:00:00:00:01\", addresses = [\"192.0.2.1/24\"] }]"
            }
            "nat" => "outside = [1]\naddress = \"203.0.113.1\"",
            "xor" => "key = 1",
            "filter" => "default = \"drop\"",
            "switch" => "rule = [{ in_port = 0, actions = [\"output:1\"] }]",
            "balance" => "port = 0\nhops = [\"02:00:00:00:00:01\"]",
            _ => "",
        };
        let table = settings.parse().unwrap();
        let runs_there = entry.runs_in_kernel();
        match FUNCTIONS.in_kernel(entry.name, table, 0) {
            Ok(_) => assert!(runs_there, "{}", entry.name),
            Err(e) => assert!(!runs_there, "{}: {e}", entry.name),
        }
    }
    let error = FUNCTIONS
        .in_kernel("snort", toml::Table::new(), 0)
        .unwrap_err();
    assert!(error.0.contains("no function \"snort\""));
    let linear = "address = \"192.0.2.1\"\nmatching = \"linear\"".parse();
    let error = FUNCTIONS.in_kernel("gtpu", linear.unwrap(), 0).unwrap_err();
    assert!(error.0.contains("supports only hash"), "{error}");
    let error = FUNCTIONS
        .in_kernel("burn", "cycles = 100".parse().unwrap(), 0)
        .unwrap_err();
    assert!(
        error
            .0
            .contains("\"burn\" cannot run in the kernel (what it costs is")
    );
}
