//! The facts that an experiment file requires of a node (`wants`), by their names in the record of a run.

use crate::agent::Facts;
use serde_json::Value;

/// Returns the value of a fact about a node's firmware, or about its machine, such as
/// `network_cards.eth0.firmware_version`; `None` if the node did not report it.
pub(crate) fn fact(facts: &Facts, name: &str) -> Option<String> {
    let own = facts.firmware.get(name).cloned();
    own.or_else(|| value_at(&facts.machine, name))
}

/// Returns the text at a path of keys joined by dots in a JSON value. The keys may themselves contain dots.
fn value_at(value: &Value, path: &str) -> Option<String> {
    let Value::Object(fields) = value else {
        return None;
    };
    if let Some(value) = fields.get(path) {
        // A fact that was read has its source beside it.
        return text_of(value.get("value").unwrap_or(value));
    }
    fields.iter().find_map(|(name, value)| {
        value_at(value, path.strip_prefix(name.as_str())?.strip_prefix('.')?)
    })
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn facts_are_found_by_their_path_in_the_record() {
        let mut facts = crate::agent::facts();
        facts.machine = serde_json::json!({
            "bios_version": { "value": "2.1", "source": "/sys" },
            "network_cards": { "0000:17:00.1": { "firmware_version": "4.20" } },
            "cores": 8,
        });
        facts.firmware = BTreeMap::from([("bios.LogicalProc".to_owned(), "Disabled".to_owned())]);
        let of = |name: &str| fact(&facts, name);
        assert_eq!(of("bios_version").as_deref(), Some("2.1"));
        assert_eq!(of("bios.LogicalProc").as_deref(), Some("Disabled"));
        assert_eq!(of("cores").as_deref(), Some("8"));
        let card = of("network_cards.0000:17:00.1.firmware_version");
        assert_eq!(card.as_deref(), Some("4.20"));
        assert_eq!(of("network_cards"), None);
        assert_eq!(of("bios"), None);
    }
}
