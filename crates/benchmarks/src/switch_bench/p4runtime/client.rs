//! A scripted P4Runtime controller: becomes primary, sets the pipeline, and changes table entries. (P4Runtime
//! Specification 1.4.1.)

use super::connection::{Connection, Wait};
use super::error::{P4Error, Status};
use super::frames::first_error;
use super::pipeline::Pipeline;
use super::protobuf::{Fields, Message, Value, last};
use crate::switch_bench::openflow::{Change, Rule};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Timeout for a connection attempt.
const CALL: Duration = Duration::from_secs(1);
/// Timeout for a reply of the switch. It is long because the switch may have to load a pipeline first.
const PATIENCE: Duration = Duration::from_secs(120);
/// Timeout for each reply while the client cleans up.
const CLEAN_UP: Duration = Duration::from_secs(3);
/// Maximum number of changes in one request.
pub(super) const BATCH: usize = 1_000;
/// Code of gRPC for calls that a server does not have.
const UNIMPLEMENTED: u64 = 12;

/// A connection to a switch, as its primary controller.
pub(in super::super) struct Client {
    connection: Connection,
    pipeline: Arc<Pipeline>,
    /// Encoded id of this controller; the highest among all controllers of the device is primary.
    election: Message,
    /// Changes that are not sent yet.
    queued: Message,
    queued_changes: usize,
    /// Limit of the meters of the next rules, packets per second.
    meter_pps: Option<u32>,
}

/// Returns the version of the P4Runtime API of the server at `address`.
///
/// # Errors
/// No P4Runtime server replies within `patience`.
pub(in super::super) fn version(
    address: SocketAddr,
    patience: Duration,
) -> Result<String, P4Error> {
    let mut connection = Connection::open(
        address,
        CALL,
        Wait {
            patience,
            stop: None,
        },
    )?;
    let mut version = String::new();
    let called = connection.call("Capabilities", &[], |reply| {
        let text = last(reply, 1, "Capabilities")?.map(Value::text);
        version = super::error::printable(&text.unwrap_or_default());
        Ok(())
    });
    match called {
        Ok(()) => Ok(format!("P4Runtime {version}").trim().to_string()),
        // Servers of P4Runtime before 1.1 do not have the call.
        Err(P4Error::Refused { status, .. }) if status.code == UNIMPLEMENTED => {
            Ok("P4Runtime 1.0".to_string())
        }
        Err(error) => Err(error),
    }
}

impl Client {
    /// Connects to a switch, becomes primary, sets the pipeline unless the switch has it, and deletes all entries of
    /// the tables that get rules. The flag `stop` ends all waiting.
    pub fn connect(
        address: SocketAddr,
        pipeline: Arc<Pipeline>,
        stop: &'static AtomicBool,
    ) -> Result<Self, P4Error> {
        let wait = Wait {
            patience: PATIENCE,
            stop: Some(stop),
        };
        let connection = Connection::open(address, CALL, wait)?;
        // A later controller has a higher id, also if the switch remembers the id of one that left.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(1, |it| it.as_millis() as u64);
        let mut client = Self {
            connection,
            pipeline,
            election: Message::default().number(2, now),
            queued: Message::default(),
            queued_changes: 0,
            meter_pps: None,
        };
        client.arbitrate()?;
        client.configure()?;
        client.clear()?;
        Ok(client)
    }

    /// Becomes primary (section 5).
    fn arbitrate(&mut self) -> Result<(), P4Error> {
        const NAME: &str = "StreamChannel";
        let stream = self.connection.begin(NAME)?;
        let device = self.pipeline.device_id;
        let update = Message::default()
            .number(1, device)
            .message(3, &self.election);
        let request = Message::default().message(1, &update);
        self.connection.send(stream, &request.0, false)?;
        loop {
            let reply = self.connection.next(stream)?;
            let reply = reply.map_err(|status| P4Error::Refused { call: NAME, status })?;
            let Some(update) = last(&reply, 1, NAME)?.map(Value::bytes) else {
                continue;
            };
            let status = last(update, 4, NAME)?.map_or(&[][..], Value::bytes);
            if last(status, 1, NAME)?.map_or(0, Value::number) == 0 {
                return Ok(());
            }
            let primary = last(update, 3, NAME)?.map_or(&[][..], Value::bytes);
            let part = |field| Ok(last(primary, field, NAME)?.map_or(0, Value::number));
            let primary = u128::from(part(1)?) << 64 | u128::from(part(2)?);
            return Err(P4Error::NotPrimary(primary, device));
        }
    }

    /// Sets the pipeline, unless the switch has it (section 7).
    fn configure(&mut self) -> Result<(), P4Error> {
        const VERIFY_AND_COMMIT: u64 = 3;
        const COOKIE_ONLY: u64 = 1;
        let pipeline = Arc::clone(&self.pipeline);
        let Some(config) = &pipeline.config else {
            return Ok(());
        };
        let request = Message::default().number(1, pipeline.device_id);
        let mut cookie = 0;
        let name = "GetForwardingPipelineConfig";
        let request = request.number(2, COOKIE_ONLY);
        let asked = self.connection.call(name, &request.0, |reply| {
            let config = last(reply, 1, name)?.map_or(&[][..], Value::bytes);
            let inner = last(config, 3, name)?.map_or(&[][..], Value::bytes);
            cookie = last(inner, 1, name)?.map_or(0, Value::number);
            Ok(())
        });
        match asked {
            Ok(()) if cookie == pipeline.cookie => return Ok(()),
            // A switch without a pipeline refuses this call.
            Ok(()) | Err(P4Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        let request = Message::default()
            .number(1, pipeline.device_id)
            .message(3, &self.election)
            .number(4, VERIFY_AND_COMMIT)
            .bytes(5, config);
        let name = "SetForwardingPipelineConfig";
        self.connection.call(name, &request.0, |_| Ok(()))
    }

    /// Deletes all entries of the tables that get rules, except constant and default ones.
    fn clear(&mut self) -> Result<(), P4Error> {
        const NAME: &str = "Read";
        let mut request = Message::default().number(1, self.pipeline.device_id);
        for id in self.pipeline.table_ids() {
            let entry = Message::default().number(1, u64::from(id));
            let entity = Message::default().message(2, &entry);
            request = request.message(2, &entity);
        }
        let mut entries = Vec::new();
        self.connection.call(NAME, &request.0, |reply| {
            for entity in Fields::of(reply, NAME) {
                let (field, entity) = entity?;
                let entry = last(entity.bytes(), 2, NAME)?.filter(|_| field == 1);
                if let Some(entry) = entry {
                    entries.extend(key_of(entry.bytes())?);
                }
            }
            Ok(())
        })?;
        for entry in entries {
            const DELETE: u64 = 3;
            let entity = Message::default().message(2, &entry);
            self.push(&Message::default().number(1, DELETE).message(2, &entity))?;
        }
        self.confirm()
    }

    /// Deletes the entries after a measurement, also if it was stopped.
    pub fn leave(&mut self) -> Result<(), P4Error> {
        self.connection.wait = Wait {
            patience: CLEAN_UP,
            stop: None,
        };
        self.queued = Message::default();
        self.queued_changes = 0;
        self.clear()
    }

    /// Sets the limit of the meters of the next rules, packets per second.
    pub fn meter(&mut self, pps: u32) {
        self.meter_pps = Some(pps);
    }

    /// Queues a change of a rule, and sends the queue if it is long.
    pub fn queue(&mut self, change: Change, rule: &Rule) -> Result<(), P4Error> {
        let update = self.pipeline.update(change, rule, self.meter_pps);
        let update = update.ok_or_else(|| P4Error::NoTable(rule.to_string()))?;
        self.push(&update)
    }

    fn push(&mut self, update: &Message) -> Result<(), P4Error> {
        self.queued = std::mem::take(&mut self.queued).message(4, update);
        self.queued_changes += 1;
        if self.queued_changes >= BATCH {
            self.confirm()?;
        }
        Ok(())
    }

    /// Sends the queued changes, and waits until the switch has applied them.
    pub fn confirm(&mut self) -> Result<(), P4Error> {
        if self.queued_changes == 0 {
            return Ok(());
        }
        let updates = std::mem::take(&mut self.queued).0;
        self.queued_changes = 0;
        let mut request = Message::default()
            .number(1, self.pipeline.device_id)
            .message(3, &self.election);
        request.0.extend(updates);
        let written = self.connection.call("Write", &request.0, |_| Ok(()));
        written.map_err(|error| match error {
            P4Error::Refused { call, status } => {
                let text = match first_error(&status.details) {
                    Some((at, text)) => format!("change {at} of the request: {text}"),
                    None => status.text.clone(),
                };
                let status = Status { text, ..status };
                P4Error::Refused { call, status }
            }
            other => other,
        })
    }

    /// Adds the given rules, and waits until the switch has applied them.
    pub fn rules(&mut self, rules: impl IntoIterator<Item = Rule>) -> Result<(), P4Error> {
        for rule in rules {
            self.queue(Change::Add, &rule)?;
        }
        self.confirm()
    }
}

/// Returns the parts of an entry that identify it: table, match fields and priority. Returns none for an entry that
/// cannot be deleted.
fn key_of(entry: &[u8]) -> Result<Option<Message>, P4Error> {
    let mut key = Message::default();
    for field in Fields::of(entry, "a table entry") {
        match field? {
            (number @ (1 | 4), value) => key = key.number(number, value.number()),
            (2, value) => key = key.bytes(2, value.bytes()),
            // Default and constant entries.
            (8 | 13, value) if value.number() != 0 => return Ok(None),
            _ => {}
        }
    }
    Ok(Some(key))
}
