//! A laboratory that is a Slurm cluster: nodes, reservations and jobs belong to Slurm, whose commands list and change
//! them.

use crate::api::{Node, NodeState, Reservation, SlurmJob};
use crate::calendar::Span;
use crate::error::LabError;
use crate::file::{SLURM, Slurm};
use crate::time::{Seconds, text};
use std::collections::{BTreeMap, BTreeSet};
use taut_experiment::ask_slurm;

/// Returns the output of a Slurm command, in which times are UTC.
fn asked(program: &str, arguments: &[String]) -> Result<String, LabError> {
    let arguments = arguments.iter().map(String::as_str);
    let all: Vec<&str> = ["TZ=UTC", program].into_iter().chain(arguments).collect();
    ask_slurm("env", &all).map_err(|e| LabError::Slurm(format!("{program}: {e}")))
}

impl Slurm {
    /// Returns `options`, followed by an option for the partition if one is configured.
    fn options(&self, options: &[&str]) -> Vec<String> {
        let partition = self.partition.iter();
        let partition = partition.map(|it| format!("--partition={it}"));
        let options = options.iter().map(|it| (*it).to_owned());
        options.chain(partition).collect()
    }

    /// Returns the nodes of the cluster.
    pub(crate) fn nodes(&self) -> Result<Vec<Node>, LabError> {
        let options = self.options(&["--noheader", "--Node", "--format=%N|%T|%c|%f|%P"]);
        Ok(nodes_of(&asked("sinfo", &options)?))
    }

    /// Returns the jobs in the Slurm queue that wait or run.
    pub(crate) fn jobs(&self) -> Result<Vec<SlurmJob>, LabError> {
        let options = self.options(&["--noheader", "--format=%i|%u|%T|%N|%r|%j"]);
        Ok(jobs_of(&asked("squeue", &options)?))
    }

    /// Returns the reservations of the cluster.
    pub(crate) fn reservations(&self) -> Result<Vec<Reservation>, LabError> {
        let options = ["--oneliner", "show", "reservation"].map(str::to_owned);
        Ok(reservations_of(&asked("scontrol", &options)?))
    }

    /// Reserves nodes of the cluster for a user.
    pub(crate) fn reserve(
        &self,
        user: &str,
        nodes: &BTreeSet<String>,
        span: Span,
    ) -> Result<Reservation, LabError> {
        let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let options = [
            "create".to_owned(),
            "reservation".to_owned(),
            format!("Users={user}"),
            format!("Nodes={}", names.join(",")),
            format!("StartTime={}", slurm_time(span.from)),
            format!("EndTime={}", slurm_time(span.until)),
        ];
        let said = asked("scontrol", &options)?;
        let name = said.trim().rsplit(' ').next().unwrap_or_default();
        Ok(Reservation {
            id: name.to_owned(),
            user: user.to_owned(),
            nodes: nodes.clone(),
            from: text(span.from),
            until: text(span.until),
        })
    }

    /// Changes the end of the Slurm reservation `id`.
    pub(crate) fn extend(&self, id: &str, until: Seconds) -> Result<(), LabError> {
        let options = [
            "update".to_owned(),
            format!("ReservationName={id}"),
            format!("EndTime={}", slurm_time(until)),
        ];
        asked("scontrol", &options).map(drop)
    }

    /// Ends the Slurm reservation `id`.
    pub(crate) fn release(&self, id: &str) -> Result<(), LabError> {
        let options = ["delete".to_owned(), format!("ReservationName={id}")];
        asked("scontrol", &options).map(drop)
    }
}

/// Returns a time in the form that Slurm's commands accept.
fn slurm_time(at: Seconds) -> String {
    text(at).trim_end_matches('Z').to_owned()
}

/// Returns the fields of a line of Slurm's output.
fn parts<const N: usize>(line: &str) -> Option<[String; N]> {
    let parts: Vec<String> = line.splitn(N, '|').map(|it| it.trim().to_owned()).collect();
    parts.try_into().ok()
}

fn nodes_of(said: &str) -> Vec<Node> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for [name, state, cores, features, partition] in said.lines().filter_map(parts) {
        // A mark after the state adds a detail, such as `*` for a node that does not reply.
        let state = match state.as_str() {
            "idle" => NodeState::Free,
            "reserved" => NodeState::Reserved,
            "allocated" | "mixed" | "completing" => NodeState::Running,
            _ => NodeState::Other,
        };
        let properties = [("features", features), ("partition", partition)];
        let properties = properties.into_iter().filter(|(_, text)| text != "(null)");
        let properties = properties.map(|(name, text)| (name.to_owned(), text.into()));
        // A node is listed once for each of its partitions.
        nodes.entry(name.clone()).or_insert_with(|| Node {
            name,
            at: SLURM.to_owned(),
            cores: cores.parse().ok(),
            properties: properties.collect(),
            state,
            user: None,
            until: None,
        });
    }
    nodes.into_values().collect()
}

fn jobs_of(said: &str) -> Vec<SlurmJob> {
    let jobs = said.lines().filter_map(parts);
    let jobs = jobs.map(|[id, user, state, nodes, reason, name]| SlurmJob {
        id,
        user,
        name,
        state: state.to_lowercase(),
        nodes,
        reason: Some(reason).filter(|it| it != "None"),
    });
    jobs.collect()
}

fn reservations_of(said: &str) -> Vec<Reservation> {
    let of = |line: &str| {
        let value = |key: &str| {
            let mut words = line.split_whitespace();
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        Some(Reservation {
            id: value("ReservationName")?.to_owned(),
            user: value("Users")?.to_owned(),
            nodes: value("Nodes")?.split(',').map(str::to_owned).collect(),
            from: format!("{}Z", value("StartTime")?),
            until: format!("{}Z", value("EndTime")?),
        })
    };
    said.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_sinfo_squeue_and_scontrol_is_read() {
        let nodes = nodes_of(
            "n1|idle|16|gen|all*\nn1|idle|16|gen|side\nn2|down*|8|(null)|all*\nn3|mixed|8|dut|all*\nx\n",
        );
        let seen: Vec<_> = nodes
            .iter()
            .map(|it| (it.name.as_str(), it.state, it.cores))
            .collect();
        let expected = [
            ("n1", NodeState::Free, Some(16)),
            ("n2", NodeState::Other, Some(8)),
            ("n3", NodeState::Running, Some(8)),
        ];
        assert_eq!(seen, expected);
        assert_eq!(nodes[0].properties["features"], "gen");
        assert!(!nodes[1].properties.contains_key("features"));
        let jobs = jobs_of("7_[0-3]|alice|PENDING||Resources|a|b\n8|bob|RUNNING|n3|None|taut\n");
        assert_eq!(jobs[0].reason.as_deref(), Some("Resources"));
        assert_eq!(
            (jobs[0].name.as_str(), jobs[0].state.as_str()),
            ("a|b", "pending")
        );
        assert_eq!((jobs[1].nodes.as_str(), &jobs[1].reason), ("n3", &None));
        let said = "ReservationName=alice_1 StartTime=2026-12-01T09:00:00 EndTime=2026-12-01T10:00:00 Duration=01:00:00 \
            Nodes=n1,n2 NodeCnt=2 Users=alice Groups=(null)\n";
        let reserved = reservations_of(said);
        assert_eq!(reserved[0].id, "alice_1");
        assert_eq!(reserved[0].nodes, ["n1".to_owned(), "n2".to_owned()].into());
        assert_eq!(reserved[0].until, "2026-12-01T10:00:00Z");
        assert!(reservations_of("No reservations in the system\n").is_empty());
    }
}
