//! The file `machine.toml` of a results folder. It describes this machine for `taut model` and `taut chain plan`, with
//! the costs of its ports and, if all were measured, its caches.

use super::evaluate::Evaluation;
use super::facts::Results;
use super::level::Level;
use serde::Serialize;
use taut_bench::benchmark::Estimate;
use taut_bench::framework::{Framework, Program};
use taut_model::io_costs::{Cycles, IoCosts, PortCosts};
use taut_results::Manifest;

/// Name of the file that describes this machine.
pub(super) const NAME: &str = "machine.toml";

/// The contents of the file: the part of a machine file that this benchmark measures.
#[derive(Serialize)]
pub(super) struct MachineFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<u64>,
    ghz: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_cycles: Option<f64>,
    io: IoCosts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    caches: Vec<Cache>,
}

#[derive(Serialize)]
struct Cache {
    kib: f64,
    cycles: f64,
}

impl MachineFile {
    /// Makes the contents of `machine.toml` from an evaluation.
    pub(super) fn of(evaluation: &Evaluation<'_>, levels: &[Level]) -> Self {
        let Results { head, .. } = evaluation.results;
        let fact = |name: &str| head.manifest.machine.pointer(&format!("/{name}/value"));
        let text = |name: &str| Some(fact(name)?.as_str()?.to_owned());
        let (caches, memory_cycles) = caches(levels).unzip();
        Self {
            name: text("cpu_model"),
            cores: fact("cores").and_then(serde_json::Value::as_u64),
            ghz: head.tsc_hz / 1e9,
            memory_cycles,
            io: IoCosts {
                measured: head.manifest.started.clone(),
                cpu: text("cpu_model"),
                taken: taken(&head.manifest),
                frame_bytes: head.own.frame_size_bytes,
                ports: ports(evaluation),
            },
            caches: caches.unwrap_or_default(),
        }
    }
}

/// Returns the largest fraction of a core that was lost to other tasks; none if it was not measured.
fn taken(manifest: &Manifest) -> Option<f64> {
    let taken = manifest.noise.iter().filter_map(|noise| noise.taken);
    taken.reduce(f64::max)
}

fn ports(evaluation: &Evaluation<'_>) -> Vec<PortCosts> {
    let frameworks = &evaluation.results.head.own.frameworks;
    let rows = frameworks.iter().zip(&evaluation.rows);
    let of_taut = rows.filter(|(framework, _)| framework.program != Program::Testpmd);
    let costs = of_taut.filter_map(|(framework, row)| {
        Some(PortCosts {
            port: begin_of_specs(framework),
            batch: cycles(&row.io_cycles?),
            alone: evaluation.alone_cycles(&framework.id).as_ref().map(cycles),
        })
    });
    costs.collect()
}

/// Returns the prefix of the specs of a framework's ports: the backend, and the driver for DPDK.
fn begin_of_specs(framework: &Framework) -> String {
    let spec = &framework.ports[0];
    let (backend, device) = spec.split_once(':').unwrap_or((spec, ""));
    let is_of_driver = |c: char| c.is_ascii_alphabetic() || c == '_';
    match (backend, device.find(|c| !is_of_driver(c))) {
        ("dpdk", Some(end)) => format!("dpdk:{}", &device[..end]),
        _ => backend.to_owned(),
    }
}

fn cycles(estimate: &Estimate) -> Cycles {
    Cycles {
        cycles: estimate.point,
        low: estimate.low,
        high: estimate.high,
        coverage: estimate.confidence,
        count: estimate.count,
    }
}

/// Returns the caches and the cycles of memory; none unless all levels are measured, and each takes longer than the
/// level before.
fn caches(levels: &[Level]) -> Option<(Vec<Cache>, f64)> {
    let measured: Option<Vec<f64>> = levels.iter().map(|level| level.measured_cycles).collect();
    let measured = measured.filter(|all| all.iter().all(|cycles| *cycles > 0.0))?;
    let ascend = measured.windows(2).all(|pair| pair[0] < pair[1]);
    let caches = levels.iter().zip(&measured).filter_map(|(level, cycles)| {
        Some(Cache {
            kib: level.size_bytes? as f64 / 1024.0,
            cycles: *cycles,
        })
    });
    ascend.then(|| Some((caches.collect(), *measured.last()?)))?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::evaluate::tests::made_up;
    use super::*;

    fn level(size_bytes: Option<u64>, measured_cycles: Option<f64>) -> Level {
        Level {
            name: "L".to_owned(),
            size_bytes,
            measured_cycles,
            published_cycles: 1.0,
        }
    }

    #[test]
    fn ports_list_their_costs_and_unmeasured_caches_are_omitted() {
        let results = made_up();
        let file = MachineFile::of(&Evaluation::of(&results), &[]);
        assert_eq!(file.ghz, 2.6);
        let ports: Vec<&str> = file.io.ports.iter().map(|it| it.port.as_str()).collect();
        assert_eq!(ports, ["null", "memif"]);
        assert!((file.io.ports[1].batch.cycles - 110.0).abs() < 1e-6);
        assert_eq!(file.io.ports[1].batch.count, 3);
        assert!(file.io.check().is_ok());
        let text = toml::to_string(&file).unwrap();
        assert!(
            text.contains("[[io.port]]\nport = \"null\"") && !text.contains("caches"),
            "{text}"
        );
    }

    #[test]
    fn caches_are_written_only_if_all_are_measured_and_ascending() {
        let kib = |kib: u64| Some(kib * 1024);
        let known = [level(kib(32), Some(5.0)), level(None, Some(200.0))];
        let (found, memory) = caches(&known).unwrap();
        assert_eq!((found[0].kib, found[0].cycles, memory), (32.0, 5.0, 200.0));
        assert!(caches(&[level(kib(32), None), level(None, Some(200.0))]).is_none());
        assert!(caches(&[level(kib(32), Some(300.0)), level(None, Some(200.0))]).is_none());
    }

    #[test]
    fn a_dpdk_port_is_identified_by_its_driver() {
        let (frameworks, _) = super::super::framework::possible();
        let mut dpdk = frameworks[0].clone();
        dpdk.ports[0] = "dpdk:net_memif0,role=client".to_owned();
        assert_eq!(begin_of_specs(&dpdk), "dpdk:net_memif");
        assert_eq!(begin_of_specs(&frameworks[0]), "null");
    }
}
