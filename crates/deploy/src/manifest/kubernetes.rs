//! A chain on Kubernetes: a deployment of one pod for each function, networks by Multus.
//!
//! Sources: Kubernetes API 1.29 and later; "Kubernetes Network Custom Resource Definition De-facto Standard" 1.3
//! (Multus).

use super::document::Document;
use super::unit::{CHAIN_FILE, INTERFACES, Unit, Units};
use crate::DeployError;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Port at which pods serve their counters.
const METRICS_PORT: u16 = 9100;
const CHAIN_LABEL: &str = "app.kubernetes.io/part-of";
const NAME_LABEL: &str = "app.kubernetes.io/name";

/// Options of every pod.
#[derive(Debug, Clone)]
pub struct KubernetesOptions {
    /// The container image, with `taut` on its search path.
    pub image: String,
    /// Number of exclusive processors of a pod: one for the worker, the rest for all other threads.
    pub cpus: u32,
    /// Memory of a pod, MiB.
    pub memory_mib: u32,
    /// Memory of a pod in huge pages of 2 MiB, MiB; 0 for no huge pages.
    pub huge_pages_mib: u32,
}

pub(super) fn documents(
    units: &Units,
    options: &KubernetesOptions,
) -> Result<Vec<Document>, DeployError> {
    let mut documents: Vec<Document> = (0..units.networks())
        .map(|number| document("network", network_attachment(units, number)))
        .collect();
    for unit in &units.all {
        documents.push(document("chain", config_map(units, unit)));
        documents.push(document("function", deployment(units, unit, options)));
    }
    Ok(documents)
}

fn document(kind: &str, content: Value) -> Document {
    let name = content["metadata"]["name"].as_str().unwrap_or_default();
    Document {
        name: format!("{kind}-{name}.yaml"),
        content,
    }
}

fn network_name(units: &Units, number: usize) -> String {
    format!("{}-net-{number}", units.chain)
}

/// Describes the bridge for one network on the node. The bridge's name becomes the name of an interface, so it has at
/// most 15 characters.
fn network_attachment(units: &Units, number: usize) -> Value {
    let mut hasher = DefaultHasher::new();
    units.chain.hash(&mut hasher);
    let bridge = format!("taut{:06x}-{number}", hasher.finish() & 0xff_ffff);
    let name = network_name(units, number);
    let config = json!({
        "cniVersion": "0.3.1",
        "name": name,
        "type": "bridge",
        "bridge": bridge,
        "ipam": {}
    });
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "labels": { CHAIN_LABEL: units.chain } },
        "spec": { "config": config.to_string() }
    })
}

fn config_map(units: &Units, unit: &Unit) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": unit.name, "labels": labels(units, unit) },
        "data": { "chain.toml": unit.chain }
    })
}

fn labels(units: &Units, unit: &Unit) -> Value {
    json!({ CHAIN_LABEL: units.chain, NAME_LABEL: unit.name })
}

fn deployment(units: &Units, unit: &Unit, options: &KubernetesOptions) -> Value {
    let networks: Vec<Value> = INTERFACES
        .iter()
        .zip(unit.networks)
        .map(|(interface, number)| {
            json!({ "name": network_name(units, number), "interface": interface })
        })
        .collect();
    let networks = Value::from(networks).to_string();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": unit.name, "labels": labels(units, unit) },
        "spec": {
            "replicas": 1,
            // If the old and the new pod ran at the same time, each would send every packet.
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": { NAME_LABEL: unit.name } },
            "template": {
                "metadata": {
                    "labels": labels(units, unit),
                    "annotations": { "k8s.v1.cni.cncf.io/networks": networks }
                },
                "spec": {
                    "affinity": { "podAffinity": same_node(units) },
                    "automountServiceAccountToken": false,
                    "containers": [container(unit, options)],
                    "volumes": volumes(unit)
                }
            }
        }
    })
}

/// Returns the rule that all pods run on one node, because bridges do not connect nodes.
fn same_node(units: &Units) -> Value {
    json!({
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": { "matchLabels": { CHAIN_LABEL: units.chain } },
            "topologyKey": "kubernetes.io/hostname"
        }]
    })
}

fn container(unit: &Unit, options: &KubernetesOptions) -> Value {
    // The requests are equal to the limits, in whole processors: the pod is "guaranteed", and a static CPU manager
    // gives it exclusive processors.
    let mut resources = json!({
        "cpu": options.cpus.to_string(),
        "memory": format!("{}Mi", options.memory_mib)
    });
    if options.huge_pages_mib > 0 {
        resources["hugepages-2Mi"] = format!("{}Mi", options.huge_pages_mib).into();
    }
    let secret = secret_name(unit);
    let environment: Vec<Value> = unit
        .variables
        .iter()
        .map(|name| {
            json!({ "name": name, "valueFrom": { "secretKeyRef": { "name": secret, "key": name } } })
        })
        .collect();
    let mut mounts = vec![json!({
        "name": "chain", "mountPath": CHAIN_FILE, "subPath": "chain.toml", "readOnly": true
    })];
    for path in &unit.files {
        mounts.push(json!({
            "name": "secret", "mountPath": path, "subPath": file_name(path), "readOnly": true
        }));
    }
    json!({
        "name": "taut",
        "image": options.image,
        "command": ["taut", "forward", CHAIN_FILE, "--metrics", format!("0.0.0.0:{METRICS_PORT}")],
        "ports": [{ "name": "metrics", "containerPort": METRICS_PORT }],
        "readinessProbe": {
            "httpGet": { "path": "/metrics", "port": "metrics" },
            "periodSeconds": 2
        },
        "resources": { "requests": resources, "limits": resources },
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"], "add": ["IPC_LOCK", "NET_ADMIN", "NET_RAW"] }
        },
        "env": environment,
        "volumeMounts": mounts
    })
}

fn volumes(unit: &Unit) -> Value {
    let mut volumes = vec![json!({ "name": "chain", "configMap": { "name": unit.name } })];
    if !unit.files.is_empty() {
        volumes.push(json!({
            "name": "secret",
            "secret": { "secretName": secret_name(unit), "defaultMode": 0o400 }
        }));
    }
    volumes.into()
}

/// Returns the name of the Kubernetes secret with the keys of a unit, which runs one function of the chain. The user
/// creates the secret, as keys do not belong in a manifest.
fn secret_name(unit: &Unit) -> String {
    format!("{}-secret", unit.name)
}

fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{kubernetes, tests::chain};
    use super::*;
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    fn options() -> KubernetesOptions {
        KubernetesOptions {
            image: "taut:1".to_string(),
            cpus: 2,
            memory_mib: 256,
            huge_pages_mib: 64,
        }
    }

    /// Makes the documents of a chain; its first function has a key in the returned file.
    fn documents() -> (Vec<Document>, tempfile::NamedTempFile) {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "00112233445566778899aabbccddeeff").unwrap();
        let mut all = chain(&["aes", "xor(key=7)"]);
        let settings = format!("key_file = {:?}\nencrypt = [1]", key.path());
        all.functions[0].settings = settings.parse().unwrap();
        (kubernetes(&all, "edge", &options()).unwrap(), key)
    }

    fn of_kind<'a>(documents: &'a [Document], kind: &str) -> Vec<&'a Value> {
        let contents = documents.iter().map(|document| &document.content);
        contents.filter(|content| content["kind"] == kind).collect()
    }

    /// Checks that the content is unchanged after conversion to the type and back: then it has no unknown fields, and
    /// no field of another type.
    #[track_caller]
    fn fits<T: DeserializeOwned + Serialize>(content: &Value) {
        let typed: T = serde_json::from_value(content.clone()).unwrap();
        assert_eq!(&serde_json::to_value(typed).unwrap(), content);
    }

    #[test]
    fn manifest_objects_have_only_fields_that_kubernetes_defines() {
        let (documents, _key) = documents();
        for content in of_kind(&documents, "Deployment") {
            fits::<Deployment>(content);
        }
        for content in of_kind(&documents, "ConfigMap") {
            fits::<ConfigMap>(content);
        }
        let kinds = ["NetworkAttachmentDefinition", "ConfigMap", "Deployment"];
        let counts = kinds.map(|kind| of_kind(&documents, kind).len());
        assert_eq!((counts, documents.len()), ([3, 2, 2], 7));
    }

    #[test]
    fn neighbouring_pods_share_a_defined_network() {
        let (documents, _key) = documents();
        let networks: Vec<&str> = of_kind(&documents, "NetworkAttachmentDefinition")
            .iter()
            .map(|content| {
                let config = content["spec"]["config"].as_str().unwrap();
                let config: Value = serde_json::from_str(config).unwrap();
                assert_eq!(config["type"], "bridge");
                assert!(config["bridge"].as_str().unwrap().len() <= 15);
                content["metadata"]["name"].as_str().unwrap()
            })
            .collect();
        let attached: Vec<[String; 2]> = of_kind(&documents, "Deployment")
            .iter()
            .map(|content| {
                let pod = &content["spec"]["template"]["metadata"];
                let text = pod["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str();
                let list: Vec<Value> = serde_json::from_str(text.unwrap()).unwrap();
                assert_eq!(
                    (&list[0]["interface"], &list[1]["interface"]),
                    (&"west".into(), &"east".into())
                );
                [0, 1].map(|at| list[at]["name"].as_str().unwrap().to_string())
            })
            .collect();
        assert_eq!(attached[0], [networks[0], networks[1]]);
        assert_eq!(attached[1], [networks[1], networks[2]]);
    }

    #[test]
    fn pods_have_guaranteed_resources_and_contain_no_keys() {
        let (documents, key) = documents();
        let pod = &of_kind(&documents, "Deployment")[0]["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let resources = &container["resources"];
        assert_eq!(resources["limits"], resources["requests"]);
        assert_eq!(resources["limits"]["cpu"], "2");
        assert_eq!(resources["limits"]["hugepages-2Mi"], "64Mi");
        assert_eq!(
            container["volumeMounts"][1]["mountPath"].as_str(),
            key.path().to_str()
        );
        assert_eq!(
            pod["volumes"][1]["secret"]["secretName"],
            "edge-1-aes-secret"
        );
        assert!(
            documents
                .iter()
                .all(|d| !d.content.to_string().contains("00112233"))
        );
        let without = KubernetesOptions {
            huge_pages_mib: 0,
            ..options()
        };
        let documents = kubernetes(&chain(&["forward"]), "edge", &without).unwrap();
        let deployment = of_kind(&documents, "Deployment")[0].to_string();
        assert!(!deployment.contains("hugepages"), "{deployment}");
    }

    #[test]
    fn manifest_yaml_parses_to_the_original_document() {
        for document in documents().0 {
            let text = document.text().unwrap();
            let read: Value = serde_norway::from_str(&text).unwrap();
            assert_eq!(read, document.content, "{text}");
        }
    }
}
