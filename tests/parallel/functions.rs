//! Tests of `taut functions`.

use crate::support::program::run;
use crate::support::taut;
use serde_json::Value;

#[test]
fn functions_and_their_settings_are_listed() {
    let all = run(&mut taut(&["functions"])).success().stdout;
    let nat = all.lines().find(|line| line.starts_with("nat "));
    assert!(nat.is_some_and(|line| line.contains(" kernel ")), "{all}");
    let nat = run(&mut taut(&["functions", "nat"])).success().stdout;
    assert!(nat.contains("\n  address  (required)\n"), "{nat}");
    let printed = run(&mut taut(&["functions", "--json"])).success().stdout;
    let listed: Vec<Value> = serde_json::from_str(&printed).unwrap();
    assert_eq!(listed.len(), all.lines().count(), "{all}");
    let filter = listed.iter().find(|it| it["name"] == "filter").unwrap();
    assert_eq!(filter["settings"][0]["keys"][0], "default", "{filter}");
    assert_eq!(filter["settings"][0]["default"], "required", "{filter}");
}
