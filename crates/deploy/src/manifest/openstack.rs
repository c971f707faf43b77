//! A chain on OpenStack: a Heat template with a server for each function.
//!
//! Source: Heat Orchestration Template (HOT) specification, version 2018-08-31 (Rocky) and its resource types.

use super::{CHAIN_FILE, Document, INTERFACES, Unit, Units};
use crate::DeployError;
use serde_json::{Map, Value, json};

/// What a server runs once it is up. Interfaces are told by their addresses, as every image names them otherwise.
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
        resources.insert(
            network(number),
            json!({
                "type": "OS::Neutron::Net",
                "properties": {
                    "name": format!("{}-net-{number}", units.chain),
                    // Functions send frames of others.
                    "port_security_enabled": false
                }
            }),
        );
        // Servers get their ports only where there are addresses to give; nobody uses them.
        resources.insert(
            format!("subnet_{number}"),
            json!({
                "type": "OS::Neutron::Subnet",
                "properties": {
                    "network": { "get_resource": network(number) },
                    "cidr": { "get_param": "unused_addresses" },
                    "enable_dhcp": false,
                    "gateway_ip": ""
                }
            }),
        );
    }
    for (at, unit) in units.all.iter().enumerate() {
        for (interface, number) in INTERFACES.iter().zip(unit.networks) {
            resources.insert(
                port(at, interface),
                json!({
                    "type": "OS::Neutron::Port",
                    "depends_on": format!("subnet_{number}"),
                    "properties": {
                        "network": { "get_resource": network(number) },
                        "port_security_enabled": false
                    }
                }),
            );
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
            "{}: there is no variable {name} in a server, and what starts it can be read by others: use key_file, a \
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
            // There is nobody on these networks to ask for it.
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
