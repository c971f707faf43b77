//! Neighbours: waits for links, requests the MAC addresses of gateways, and replies to requests for the streams' hosts.

use super::{Instrument, TrialError};
use crate::Traffic;
use crate::gateway::Gateway;
use crate::stations::Stations;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taut_port::{Batch, Packet, PoolHandle, Port};
use taut_wire::Mac;
use taut_wire::resolution::LONGEST_BYTES;

/// Interval between requests to a gateway.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// MAC addresses of gateways, shared by several load generators.
#[derive(Debug, Clone, Default)]
pub struct Gateways(Arc<Mutex<Vec<(Gateway, Mac)>>>);

impl Gateways {
    fn found(&self) -> MutexGuard<'_, Vec<(Gateway, Mac)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all gateways whose MAC addresses are known.
    pub(super) fn all(&self) -> Vec<(Gateway, Mac)> {
        self.found().clone()
    }

    fn mac(&self, gateway: &Gateway) -> Option<Mac> {
        let found = self.found();
        let it = found.iter().find(|(known, _)| known == gateway);
        it.map(|(_, mac)| *mac)
    }

    fn note(&self, gateway: Gateway, mac: Mac) {
        if self.mac(&gateway).is_none() {
            self.found().push((gateway, mac));
        }
    }
}

impl Instrument {
    /// Waits until all ports have a link and the MAC addresses of all gateways are known.
    ///
    /// # Errors
    /// A link is not up or a gateway has not replied after `patience`, which applies to each; or `stop` is set.
    pub fn wait_for_links(
        &mut self,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<(), TrialError> {
        let begun = std::time::Instant::now();
        loop {
            let down = self
                .ports
                .iter_mut()
                .zip(&self.specs)
                .find_map(|(port, spec)| match port.link() {
                    taut_port::Link::Up => None,
                    taut_port::Link::Down(why) => Some((spec.text().to_string(), why)),
                });
            let Some((port, why)) = down else {
                return self.find_gateways(patience, stop);
            };
            if stop.load(Ordering::Relaxed) {
                return Err(TrialError::Stopped);
            }
            if begun.elapsed() >= patience {
                return Err(TrialError::NoLink {
                    port,
                    why,
                    waited_s: patience.as_secs_f64(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Requests the unknown MAC addresses of gateways, and sets the MAC addresses of all gateways in the streams.
    fn find_gateways(&mut self, patience: Duration, stop: &AtomicBool) -> Result<(), TrialError> {
        for index in 0..self.traffic.streams().len() {
            let Some(gateway) = self.traffic.streams()[index].gateway() else {
                continue;
            };
            let mac = self.find_gateway(&gateway, patience, stop)?;
            point_at(&mut self.traffic, &gateway, mac);
            self.gateways.note(gateway, mac);
        }
        Ok(())
    }

    fn find_gateway(
        &mut self,
        gateway: &Gateway,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<Mac, TrialError> {
        let begun = std::time::Instant::now();
        let mut asked: Option<std::time::Instant> = None;
        let mut question = [0; LONGEST_BYTES];
        let len = gateway.question(&mut question).unwrap_or_default();
        loop {
            if let Some(mac) = self.gateways.mac(gateway) {
                return Ok(mac);
            }
            if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                if let Some(mut packet) = self.pool.take(len as u16) {
                    packet.bytes_mut().copy_from_slice(&question[..len]);
                    self.answers.push(packet);
                    self.ports[0].tx(&mut self.answers);
                    self.answers.clear();
                }
                asked = Some(std::time::Instant::now());
            }
            for port in 0..self.ports.len() {
                self.ports[port].rx(&mut self.arrived);
                let answer = |packet: &Packet| gateway.answer_in(packet.bytes());
                let found = self.arrived.packets().iter().find_map(answer);
                self.answer_arrived(port);
                self.arrived.clear();
                if let Some(mac) = found.filter(|_| port == 0) {
                    return Ok(mac);
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Err(TrialError::Stopped);
            }
            if begun.elapsed() >= patience {
                return Err(TrialError::NoGateway {
                    port: self.specs[0].text().to_string(),
                    gateway: gateway.ip,
                    waited_s: patience.as_secs_f64(),
                });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Replies to address requests among the packets that arrived at a port; returns the number of replies.
    pub(crate) fn answer_arrived(&mut self, port: usize) -> u64 {
        let ends = (port == 0, port + 1 == self.ports.len());
        for packet in self.arrived.packets() {
            answer(
                &self.stations,
                &self.pool,
                packet.bytes(),
                ends,
                &mut self.answers,
            );
        }
        send_answers(&mut *self.ports[port], &mut self.answers)
    }

    /// Replies to address requests at the first port, if that is not the receiving port; returns the number of replies.
    #[cold]
    pub(super) fn look_at_first_port(&mut self) -> u64 {
        if self.ports.len() < 2 || self.ports[0].rx(&mut self.arrived) == 0 {
            return 0;
        }
        let answered = self.answer_arrived(0);
        self.arrived.clear();
        answered
    }
}

/// Sets the destination MAC address of packets to this gateway.
pub(super) fn point_at(traffic: &mut Traffic, gateway: &Gateway, mac: Mac) {
    for stream in traffic.streams_mut() {
        if stream.gateway() == Some(*gateway) {
            stream.set_dst_mac(mac);
        }
    }
}

/// Makes the reply to a frame that requests the address of an emulated host. Without free memory there is no reply, and
/// the requester repeats its request.
#[cold]
pub(super) fn answer(
    stations: &Stations,
    pool: &PoolHandle,
    frame: &[u8],
    (first_port, last_port): (bool, bool),
    answers: &mut Batch,
) {
    let mut reply = [0; LONGEST_BYTES];
    if let Some(len) = stations.answer(frame, first_port, last_port, &mut reply)
        && let Some(mut packet) = pool.take(len as u16)
    {
        packet.bytes_mut().copy_from_slice(&reply[..len]);
        answers.push(packet);
    }
}

/// Sends the pending replies; returns the number of replies sent.
pub(super) fn send_answers(port: &mut dyn Port, answers: &mut Batch) -> u64 {
    if answers.is_empty() {
        return 0;
    }
    let made = answers.len();
    port.tx(answers);
    let left = answers.len();
    answers.clear();
    (made - left) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PortSpec;
    use taut_sys::Clock;

    #[test]
    fn a_worker_reuses_a_gateway_that_another_worker_has_resolved() {
        let traffic = Traffic::of_settings(&[("gateway", "198.18.0.99")]).unwrap();
        let specs = [PortSpec::parse("null:").unwrap()];
        let clock = Clock::calibrate(Duration::from_millis(5));
        let gateways = Gateways::default();
        let open = || {
            let parts = specs[0].parts(2).unwrap();
            let gateways = gateways.clone();
            Instrument::open_parts(&specs, parts, traffic.clone(), clock, gateways).unwrap()
        };
        let (patience, stop) = (Duration::from_millis(1), AtomicBool::new(false));
        let alone = open().wait_for_links(patience, &stop).unwrap_err();
        assert!(matches!(alone, TrialError::NoGateway { .. }), "{alone}");
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        gateways.note(traffic.streams()[0].gateway().unwrap(), mac);
        let mut other = open();
        other.wait_for_links(patience, &stop).unwrap();
        let addresses = other.traffic.streams()[0].mac_addresses().unwrap();
        assert_eq!(addresses[..6], mac.0);
    }
}
