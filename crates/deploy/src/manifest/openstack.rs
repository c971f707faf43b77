//! A chain on OpenStack: a Heat template with a server for each function.
//!
//! Source: Heat Orchestration Template (HOT) specification, version 2018-08-31 (Rocky) and its resource types.

use super::document::Document;
use super::unit::{CHAIN_FILE, INTERFACES, Unit, Units};
use crate::DeployError;
use serde_json::{Map, Value, json};

/// Script that a server runs after booting. The script finds the interfaces by their addresses, because each image
/// names interfaces differently.
const START: &str = r#"#!/bin/sh
set -eu
name_interface() {
    for folder in /sys/class/net/*; do
        if [ "$(cat "$folder/address")" = "$2" ]; then
            ip link set dev "${folder##*/}" down
            ip link set dev "${folder##*/}" name "$1"
            ip link set dev "$1" up
        fi
    done
}
name_interface west WEST_ADDRESS
name_interface east EAST_ADDRESS
mkdir -p /etc/taut
cat > CHAIN_FILE <<'END_OF_CHAIN'
CHAIN_TEXTEND_OF_CHAIN
systemd-run --unit=taut --property=Restart=always taut forward CHAIN_FILE --quiet
"#;

pub(super) fn document(units: &Units) -> Result<Document, DeployError> {
    let mut resources = Map::new();
    resources.insert("flavor".to_string(), flavor());
    for number in 0..units.networks() {
        resources.insert(network(number), network_resource(&units.chain, number));
        // A server gets a port only on a network with addresses, although these addresses are unused.
        resources.insert(format!("subnet_{number}"), subnet_resource(number));
    }
    for (at, unit) in units.all.iter().enumerate() {
        for (interface, number) in INTERFACES.iter().zip(unit.networks) {
            resources.insert(port(at, interface), port_resource(number));
        }
        resources.insert(format!("function_{}", at + 1), server(at, unit)?);
    }
    let ends = [0, units.networks() - 1].map(|number| json!({ "get_resource": network(number) }));
    let [west, east] = ends;
    let content = json!({
        "heat_template_version": "2018-08-31",
        "description": format!("Chain {}: a server for each of {} functions", units.chain, units.all.len()),
        "parameters": parameters(),
        "conditions": { "own_flavor": { "equals": [{ "get_param": "flavor" }, ""] } },
        "resources": resources,
        "outputs": {
            "west_network": { "description": "Where the chain begins", "value": west },
            "east_network": { "description": "Where the chain ends", "value": east }
        }
    });
    Ok(Document {
        name: format!("{}.yaml", units.chain),
        content,
    })
}

fn network(number: usize) -> String {
    format!("network_{number}")
}

fn port(at: usize, interface: &str) -> String {
    format!("port_{}_{interface}", at + 1)
}

fn network_resource(chain: &str, number: usize) -> Value {
    json!({
        "type": "OS::Neutron::Net",
        "properties": {
            "name": format!("{chain}-net-{number}"),
            // Functions send frames with other source addresses.
            "port_security_enabled": false
        }
    })
}

fn subnet_resource(number: usize) -> Value {
    json!({
        "type": "OS::Neutron::Subnet",
        "properties": {
            "network": { "get_resource": network(number) },
            "cidr": { "get_param": "unused_addresses" },
            "enable_dhcp": false,
            "gateway_ip": ""
        }
    })
}

fn port_resource(number: usize) -> Value {
    json!({
        "type": "OS::Neutron::Port",
        "depends_on": format!("subnet_{number}"),
        "properties": {
            "network": { "get_resource": network(number) },
            "port_security_enabled": false
        }
    })
}

fn parameters() -> Value {
    json!({
        "image": {
            "type": "string",
            "description": "Image with taut on its search path, cloud-init and systemd",
            "constraints": [{ "custom_constraint": "glance.image" }]
        },
        "flavor": {
            "type": "string",
            "default": "",
            "description": "Flavor of the servers; without one it is made, which takes an administrator"
        },
        "vcpus": { "type": "number", "default": 2, "description": "Processors of a server" },
        "ram": { "type": "number", "default": 1024, "description": "Memory of a server, MB" },
        "disk": { "type": "number", "default": 4, "description": "Disk of a server, GB" },
        "cpu_policy": {
            "type": "string",
            "default": "dedicated",
            "description": "dedicated: processors of its own; shared",
            "constraints": [{ "allowed_values": ["dedicated", "shared"] }]
        },
        "page_size": {
            "type": "string",
            "default": "large",
            "description": "Pages of a server's memory: large, small, any, or a size such as 2MB"
        },
        "unused_addresses": {
            "type": "string",
            "default": "192.0.2.0/24",
            "description": "Addresses that the networks between functions have to have; nobody uses them",
            "constraints": [{ "custom_constraint": "net_cidr" }]
        }
    })
}

fn flavor() -> Value {
    json!({
        "type": "OS::Nova::Flavor",
        "condition": "own_flavor",
        "properties": {
            "vcpus": { "get_param": "vcpus" },
            "ram": { "get_param": "ram" },
            "disk": { "get_param": "disk" },
            "extra_specs": {
                "hw:cpu_policy": { "get_param": "cpu_policy" },
                "hw:mem_page_size": { "get_param": "page_size" }
            }
        }
    })
}

fn server(at: usize, unit: &Unit) -> Result<Value, DeployError> {
    if let Some(name) = unit.variables.first() {
        return Err(DeployError::Chain(format!(
            "{}: a server has no variable {name}, and others can read its start script: use key_file, a \
             file of the image",
            unit.name
        )));
    }
    let networks: Vec<Value> = INTERFACES
        .iter()
        .map(|interface| json!({ "port": { "get_resource": port(at, interface) } }))
        .collect();
    let address = |interface: &str| json!({ "get_attr": [port(at, interface), "mac_address"] });
    let start = START
        .replace("CHAIN_FILE", CHAIN_FILE)
        .replace("CHAIN_TEXT", &unit.chain);
    Ok(json!({
        "type": "OS::Nova::Server",
        "properties": {
            "name": unit.name,
            "image": { "get_param": "image" },
            "flavor": { "if": ["own_flavor", { "get_resource": "flavor" }, { "get_param": "flavor" }] },
            "networks": networks,
            // These networks have no metadata server.
            "config_drive": true,
            "user_data_format": "RAW",
            "user_data": {
                "str_replace": {
                    "template": start,
                    "params": {
                        "WEST_ADDRESS": address(INTERFACES[0]),
                        "EAST_ADDRESS": address(INTERFACES[1])
                    }
                }
            }
        }
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{openstack, tests::chain};
    use super::*;
    use std::collections::BTreeSet;

    /// Properties of the resource types in use, from the reference of Heat's resource types (the settable ones).
    const PROPERTIES: [(&str, &[&str]); 5] = [
        (
            "OS::Neutron::Net",
            &[
                "name",
                "admin_state_up",
                "port_security_enabled",
                "shared",
                "tags",
                "value_specs",
            ],
        ),
        (
            "OS::Neutron::Subnet",
            &[
                "network",
                "cidr",
                "enable_dhcp",
                "gateway_ip",
                "ip_version",
                "name",
            ],
        ),
        (
            "OS::Neutron::Port",
            &[
                "network",
                "port_security_enabled",
                "name",
                "binding:vnic_type",
                "fixed_ips",
            ],
        ),
        (
            "OS::Nova::Flavor",
            &["vcpus", "ram", "disk", "extra_specs", "name", "is_public"],
        ),
        (
            "OS::Nova::Server",
            &[
                "name",
                "image",
                "flavor",
                "networks",
                "config_drive",
                "user_data",
                "user_data_format",
                "key_name",
                "metadata",
            ],
        ),
    ];

    fn template() -> Document {
        openstack(&chain(&["forward", "xor(key=7)"]), "edge").unwrap()
    }

    #[test]
    fn openstack_resources_have_only_properties_of_their_type() {
        let content = template().content;
        let resources = content["resources"].as_object().unwrap();
        for (name, resource) in resources {
            let kind = resource["type"].as_str().unwrap();
            let (_, known) = PROPERTIES.iter().find(|(known, _)| *known == kind).unwrap();
            for property in resource["properties"].as_object().unwrap().keys() {
                assert!(known.contains(&property.as_str()), "{name}: {property}");
            }
            for key in resource.as_object().unwrap().keys() {
                let keys = ["type", "properties", "depends_on", "condition"];
                assert!(keys.contains(&key.as_str()), "{name}: {key}");
            }
        }
        let servers = resources
            .values()
            .filter(|r| r["type"] == "OS::Nova::Server");
        assert_eq!(servers.count(), 2);
    }

    /// Returns the names in every `{kind: name}` and `{kind: [name, ...]}`, and in `depends_on`.
    fn named(value: &Value, kind: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                for (key, inner) in object {
                    let name = inner.as_str().or_else(|| inner[0].as_str());
                    if key == kind {
                        found.insert(name.unwrap().to_string());
                    }
                    named(inner, kind, found);
                }
            }
            Value::Array(list) => list.iter().for_each(|inner| named(inner, kind, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_in_the_template_resolves() {
        let content = template().content;
        for (kinds, section) in [
            (&["get_resource", "get_attr", "depends_on"][..], "resources"),
            (&["get_param"][..], "parameters"),
            (&["condition", "if"][..], "conditions"),
        ] {
            let mut names = BTreeSet::new();
            for kind in kinds {
                named(&content, kind, &mut names);
            }
            assert!(!names.is_empty(), "{section}");
            for name in names {
                assert!(content[section].get(&name).is_some(), "{section}: {name}");
            }
        }
    }

    #[test]
    fn neighbouring_servers_share_a_network_without_port_security() {
        let content = template().content;
        let resources = &content["resources"];
        let network = |port: &str| resources[port]["properties"]["network"]["get_resource"].clone();
        assert_eq!(network("port_1_east"), network("port_2_west"));
        assert_ne!(network("port_1_west"), network("port_2_east"));
        for port in ["port_1_east", "port_2_west"] {
            assert_eq!(
                resources[port]["properties"]["port_security_enabled"],
                false
            );
        }
    }

    #[test]
    fn each_openstack_server_starts_its_function() {
        let text = template().text().unwrap();
        let read: Value = serde_norway::from_str(&text).unwrap();
        let data = &read["resources"]["function_2"]["properties"]["user_data"]["str_replace"];
        let script = data["template"].as_str().unwrap();
        for part in [
            "#!/bin/sh\n",
            "name_interface west WEST_ADDRESS",
            "name = \"xor\"",
            "taut forward /etc/taut/chain.toml",
        ] {
            assert!(script.contains(part), "{part}: {script}");
        }
        // The shell checks the syntax of the script.
        let mut shell = std::process::Command::new("sh");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script).unwrap();
        assert!(shell.arg("-n").arg(file.path()).status().unwrap().success());
    }
}
