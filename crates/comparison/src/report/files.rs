//! The files of the results folder as links relative to the report.

use taut_results::Results;

/// The data files of a device.
pub struct Files {
    /// Name of the device.
    pub device: String,
    /// Paths of the device's files relative to the report, by repetition.
    pub links: Vec<String>,
}

/// Returns the data files that exist in the results folder, by device.
pub fn files(results: &Results) -> Vec<Files> {
    let mut out: Vec<Files> = Vec::new();
    for run in &results.runs {
        let names = ["cbr.json", "latency.hlog", "samples.parquet", "sweep.json"];
        let there = names.into_iter().filter(|name| run.has(name));
        let links = there.map(|name| format!("{}/{name}", run.name));
        match out.last_mut() {
            Some(last) if last.device == run.device_id => last.links.extend(links),
            _ => out.push(Files {
                device: run.device_id.clone(),
                links: links.collect(),
            }),
        }
    }
    out
}
