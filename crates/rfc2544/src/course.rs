//! The order of all measurements on one device.

use super::results::Part;
use super::session::{Session, estimate, times};
use super::soak;
use taut_bench::device::RunError;

impl Session<'_, '_> {
    /// Measures one part after another. Every repetition of a part measures all frame sizes, so that a slow change of
    /// the machine affects all sizes.
    pub(super) fn all(mut self) -> Result<(), RunError> {
        for part in self.settings.parts.clone() {
            if part == Part::Soak {
                self.take(0)?;
                let rate_pps = self.soak_pps()?;
                let seconds = self.settings.soak_seconds;
                self.progress.begin(seconds, Part::Soak.name());
                soak::run(&mut self, rate_pps)?;
                self.progress.end();
                continue;
            }
            for repetition in 1..=times(self.settings, part) {
                for size in 0..self.sizes.len() {
                    self.one(part, size, repetition)?;
                }
            }
        }
        Ok(())
    }

    fn one(&mut self, part: Part, size: usize, repetition: u32) -> Result<(), RunError> {
        let what = format!(
            "{} {} {repetition}/{}",
            self.sizes[size],
            part.name(),
            times(self.settings, part)
        );
        self.progress.begin(estimate(self.settings, part), &what);
        self.take(size)?;
        let measured = match part {
            Part::Throughput => self.throughput(size, repetition, &what)?,
            Part::Latency => self.latency(size, repetition, &what)?,
            Part::Loss => self.loss(size, &what)?,
            Part::BackToBack => self.back_to_back(size, &what)?,
            Part::Soak => return Ok(()),
        };
        self.write(size, repetition, measured)?;
        self.progress.end();
        Ok(())
    }

    /// Returns the soak's rate: the configured one, or half of the throughput.
    fn soak_pps(&self) -> Result<f64, RunError> {
        let half = self.found(0).map(|found| found / 2.0);
        self.settings.rate_pps.or(half).ok_or_else(|| {
            RunError::Device(
                "no rate passed, so there is none for the soak test: give --rate".to_string(),
            )
        })
    }
}
