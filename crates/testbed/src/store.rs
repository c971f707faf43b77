//! The data that the laboratory must not lose: reservations and experiments, in SQLite with a write-ahead log. A change is on
//! disk when [`Store::change`] returns, and is undone completely if it returns an error.

use crate::api::State;
use crate::calendar::{Reservation, Span};
use crate::error::LabError;
use crate::time::Seconds;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, TransactionBehavior, params};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Version of the database's tables.
const SCHEMA: i64 = 1;
/// Name of the database in the laboratory's folder.
const NAME: &str = "lab.sqlite";
const TABLES: &str = "
CREATE TABLE reservation (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user TEXT NOT NULL,
    nodes TEXT NOT NULL,
    begins INTEGER NOT NULL,
    ends INTEGER NOT NULL
) STRICT;
CREATE INDEX reservation_ends ON reservation (ends);
CREATE TABLE experiment (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    title TEXT NOT NULL,
    nodes TEXT NOT NULL,
    reservation INTEGER,
    longest INTEGER NOT NULL,
    changes TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    submitted INTEGER NOT NULL,
    started INTEGER,
    ended INTEGER,
    ending TEXT,
    starts INTEGER NOT NULL
) STRICT;
CREATE INDEX experiment_state ON experiment (state, id);
CREATE TABLE file (
    experiment INTEGER NOT NULL,
    name TEXT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (experiment, name)
) STRICT, WITHOUT ROWID;
";

/// The reason why a running experiment is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A user has cancelled the experiment.
    Cancelled,
    /// The experiment may no longer use its nodes; it returns to the queue.
    Displaced,
}

impl Ending {
    fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Displaced => "displaced",
        }
    }
}

/// An experiment in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) user: String,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) reservation: Option<u64>,
    /// Maximum duration of the experiment, s.
    pub(crate) longest: Seconds,
    pub(crate) changes: Changed,
    pub(crate) state: State,
    pub(crate) reason: Option<String>,
    pub(crate) submitted: Seconds,
    pub(crate) started: Option<Seconds>,
    pub(crate) ended: Option<Seconds>,
    pub(crate) ending: Option<Ending>,
    /// Number of times that the experiment was started.
    pub(crate) starts: u32,
}

/// Changes to the experiment file that the user requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Changed {
    pub(crate) set: Vec<(String, String)>,
    pub(crate) repetitions: Option<u32>,
}

/// The database of a laboratory.
pub(crate) struct Store {
    connection: Mutex<Connection>,
    path: PathBuf,
}

impl Store {
    /// Opens the database in a folder, and creates it if there is none. No other process can open the database until it
    /// is closed.
    pub(crate) fn open(folder: &Path) -> Result<Self, LabError> {
        let path = folder.join(NAME);
        let failed = |e| error_of(&path, e);
        let mut connection = Connection::open(&path).map_err(failed)?;
        // In this locking mode, the index of the write-ahead log is in memory. Otherwise it is in a mapped file, and a
        // full disk could kill the process when it writes there.
        for (pragma, value) in [
            ("locking_mode", "EXCLUSIVE"),
            ("journal_mode", "WAL"),
            ("synchronous", "FULL"),
        ] {
            let set = connection.pragma_update_and_check(None, pragma, value, |_| Ok(()));
            match set {
                Err(rusqlite::Error::QueryReturnedNoRows) | Ok(()) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        let begin = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let begun = begin.map_err(failed)?;
        let version = begun.pragma_query_value(None, "user_version", |row| row.get(0));
        match version.map_err(failed)? {
            0_i64 => {
                begun.execute_batch(TABLES).map_err(failed)?;
                begun
                    .pragma_update(None, "user_version", SCHEMA)
                    .map_err(failed)?;
            }
            SCHEMA => {}
            other => {
                return Err(LabError::Unreadable {
                    reason: format!(
                        "tables of version {other}, this taut reads {SCHEMA}; use the taut that wrote it"
                    ),
                    path,
                });
            }
        }
        begun.commit().map_err(failed)?;
        Ok(Self {
            connection: Mutex::new(connection),
            path,
        })
    }

    /// Reads from the database; no other thread changes the database during the call.
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&Rows<'_>) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        read(&Rows {
            connection: &connection,
            path: &self.path,
        })
    }

    /// Changes the database: completely and on disk, or not at all if `change` or the disk fails.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&Rows<'_>) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let failed = |e| error_of(&self.path, e);
        let begun = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(failed)?;
        let changed = change(&Rows {
            connection: &begun,
            path: &self.path,
        })?;
        begun.commit().map_err(failed)?;
        Ok(changed)
    }
}

/// Converts an error of SQLite; a full disk becomes [`LabError::Full`].
fn error_of(path: &Path, source: rusqlite::Error) -> LabError {
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => LabError::Full {
            folder: path.parent().unwrap_or(path).to_owned(),
        },
        Some(ErrorCode::DatabaseBusy) => LabError::Unreadable {
            path: path.to_owned(),
            reason: "another program has it open: stop that program first".to_owned(),
        },
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => LabError::Unreadable {
            path: path.to_owned(),
            reason: "it is damaged, or not a database".to_owned(),
        },
        _ => LabError::Database {
            path: path.to_owned(),
            source,
        },
    }
}

/// Access to the rows of the laboratory's database.
pub(crate) struct Rows<'a> {
    connection: &'a Connection,
    path: &'a Path,
}

impl Rows<'_> {
    fn done<T>(&self, result: rusqlite::Result<T>) -> Result<T, LabError> {
        result.map_err(|e| error_of(self.path, e))
    }

    /// Returns the reservations that end after `now`, ordered by their begin.
    pub(crate) fn reservations(&self, now: Seconds) -> Result<Vec<Reservation>, LabError> {
        let query = "SELECT id, user, nodes, begins, ends FROM reservation WHERE ends > ?1 ORDER BY begins, id";
        let rows = || {
            let mut query = self.connection.prepare(query)?;
            let rows = query.query_map([number(now)], reservation_of)?;
            rows.collect()
        };
        self.done(rows())
    }

    pub(crate) fn add_reservation(
        &self,
        user: &str,
        nodes: &BTreeSet<String>,
        span: Span,
    ) -> Result<u64, LabError> {
        let insert = "INSERT INTO reservation (user, nodes, begins, ends) VALUES (?1, ?2, ?3, ?4)";
        let row = params![user, json(nodes), number(span.from), number(span.until)];
        self.done(self.connection.execute(insert, row))?;
        Ok(self.connection.last_insert_rowid().cast_unsigned())
    }

    /// Sets the end of a reservation.
    pub(crate) fn set_end(&self, id: u64, until: Seconds) -> Result<(), LabError> {
        let update = "UPDATE reservation SET ends = ?2 WHERE id = ?1";
        let row = params![number(id), number(until)];
        self.done(self.connection.execute(update, row)).map(drop)
    }

    /// Returns the experiments that are in one of the given states, in the order of their submission.
    pub(crate) fn jobs(&self, states: &[State]) -> Result<Vec<Job>, LabError> {
        let mut all = Vec::new();
        for state in states {
            let query = format!("SELECT {COLUMNS} FROM experiment WHERE state = ?1 ORDER BY id");
            let rows = || {
                let mut query = self.connection.prepare(&query)?;
                let rows = query.query_map([state.as_str()], job_of)?;
                rows.collect::<rusqlite::Result<Vec<Job>>>()
            };
            all.extend(self.done(rows())?);
        }
        all.sort_by_key(|job| job.id);
        Ok(all)
    }

    /// Returns the number of experiments that wait.
    pub(crate) fn waiting(&self) -> Result<u64, LabError> {
        let query = "SELECT count(*) FROM experiment WHERE state = 'waiting'";
        let count = self
            .connection
            .query_row(query, [], |row| row.get::<_, i64>(0));
        Ok(self.done(count)?.cast_unsigned())
    }

    /// Returns the experiments that ended last, at most `most`, in the order of their submission.
    pub(crate) fn ended_jobs(&self, most: usize) -> Result<Vec<Job>, LabError> {
        let query = format!(
            "SELECT {COLUMNS} FROM experiment WHERE ended IS NOT NULL AND state NOT IN ('waiting', 'running')
             ORDER BY ended DESC, id DESC LIMIT ?1"
        );
        let rows = || {
            let mut query = self.connection.prepare(&query)?;
            let rows = query.query_map([most as i64], job_of)?;
            rows.collect::<rusqlite::Result<Vec<Job>>>()
        };
        let mut jobs = self.done(rows())?;
        jobs.sort_by_key(|job| job.id);
        Ok(jobs)
    }

    pub(crate) fn job(&self, id: u64) -> Result<Option<Job>, LabError> {
        let query = format!("SELECT {COLUMNS} FROM experiment WHERE id = ?1");
        let row = || {
            let mut query = self.connection.prepare(&query)?;
            query.query_row([number(id)], job_of).optional()
        };
        self.done(row())
    }

    /// Adds an experiment with the files of its submission, and returns its number; the number in `job` is ignored.
    pub(crate) fn add_job(
        &self,
        job: &Job,
        files: &BTreeMap<String, String>,
    ) -> Result<u64, LabError> {
        let insert = "INSERT INTO experiment (user, name, title, nodes, reservation, longest, changes, state, submitted,
            starts) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0)";
        let row = params![
            job.user,
            job.name,
            job.title,
            json(&job.nodes),
            job.reservation.map(number),
            number(job.longest),
            json(&job.changes),
            job.state.as_str(),
            number(job.submitted),
        ];
        self.done(self.connection.execute(insert, row))?;
        let id = self.connection.last_insert_rowid();
        let insert = "INSERT INTO file (experiment, name, content) VALUES (?1, ?2, ?3)";
        for (name, content) in files {
            let row = params![id, name, content];
            self.done(self.connection.execute(insert, row))?;
        }
        Ok(id.cast_unsigned())
    }

    /// Writes those fields of an experiment that can change.
    pub(crate) fn update_job(&self, job: &Job) -> Result<(), LabError> {
        let update = "UPDATE experiment SET reservation = ?2, state = ?3, reason = ?4, started = ?5, ended = ?6,
            ending = ?7, starts = ?8 WHERE id = ?1";
        let row = params![
            number(job.id),
            job.reservation.map(number),
            job.state.as_str(),
            job.reason,
            job.started.map(number),
            job.ended.map(number),
            job.ending.map(Ending::as_str),
            job.starts,
        ];
        self.done(self.connection.execute(update, row)).map(drop)
    }

    /// Returns the files that the user submitted with an experiment.
    pub(crate) fn files(&self, id: u64) -> Result<BTreeMap<String, String>, LabError> {
        let query = "SELECT name, content FROM file WHERE experiment = ?1";
        let rows = || {
            let mut query = self.connection.prepare(query)?;
            let rows = query.query_map([number(id)], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        };
        self.done(rows())
    }

    /// Removes the submitted files of an experiment from the database, because the results folder contains them as
    /// well.
    pub(crate) fn remove_files(&self, id: u64) -> Result<(), LabError> {
        let delete = "DELETE FROM file WHERE experiment = ?1";
        self.done(self.connection.execute(delete, [number(id)]))
            .map(drop)
    }
}

/// Columns of an experiment, in the order of [`job_of`].
const COLUMNS: &str = "id, user, name, title, nodes, reservation, longest, changes, state, reason, submitted, started,
    ended, ending, starts";

/// Converts a number for SQLite, whose integers are signed.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Reads a column that contains JSON.
fn of_json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|e| {
        let kind = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(e))
    })
}

fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.max(0).cast_unsigned())
}

fn optional(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    let value: Option<i64> = row.get(column)?;
    Ok(value.map(|it| it.max(0).cast_unsigned()))
}

fn reservation_of(row: &Row<'_>) -> rusqlite::Result<Reservation> {
    Ok(Reservation {
        id: unsigned(row, 0)?,
        user: row.get(1)?,
        nodes: of_json(row, 2)?,
        span: Span {
            from: unsigned(row, 3)?,
            until: unsigned(row, 4)?,
        },
    })
}

fn job_of(row: &Row<'_>) -> rusqlite::Result<Job> {
    let state: String = row.get(8)?;
    let state = State::ALL.into_iter().find(|it| it.as_str() == state);
    let ending: Option<String> = row.get(13)?;
    let endings = [Ending::Cancelled, Ending::Displaced];
    Ok(Job {
        id: unsigned(row, 0)?,
        user: row.get(1)?,
        name: row.get(2)?,
        title: row.get(3)?,
        nodes: of_json(row, 4)?,
        reservation: optional(row, 5)?,
        longest: unsigned(row, 6)?,
        changes: of_json(row, 7)?,
        state: state.unwrap_or(State::Failed),
        reason: row.get(9)?,
        submitted: unsigned(row, 10)?,
        started: optional(row, 11)?,
        ended: optional(row, 12)?,
        ending: ending.and_then(|it| endings.into_iter().find(|one| one.as_str() == it)),
        starts: row.get(14)?,
    })
}

/// Makes the folder of a laboratory, which only the user of the service can read.
pub(crate) fn make_folder(folder: &Path) -> Result<(), LabError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(LabError::io(folder))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn nodes() -> BTreeSet<String> {
        ["a".to_owned(), "b".to_owned()].into()
    }

    fn job() -> Job {
        Job {
            id: 0,
            user: "alice".to_owned(),
            name: "demo".to_owned(),
            title: "Demo".to_owned(),
            nodes: nodes(),
            reservation: Some(3),
            longest: 70,
            changes: Changed {
                set: vec![("x".to_owned(), "[1, 2]".to_owned())],
                repetitions: Some(2),
            },
            state: State::Waiting,
            reason: None,
            submitted: 5,
            started: None,
            ended: None,
            ending: None,
            starts: 0,
        }
    }

    #[test]
    fn stored_rows_are_read_back_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let span = Span {
            from: 10,
            until: 20,
        };
        let files: BTreeMap<_, _> = [("demo.toml".to_owned(), "title = \"ä\"".to_owned())].into();
        let store = Store::open(folder.path()).unwrap();
        let (one, mut two) = store
            .change(|rows| {
                let id = rows.add_job(&job(), &files)?;
                Ok((
                    rows.add_reservation("alice", &nodes(), span)?,
                    Job { id, ..job() },
                ))
            })
            .unwrap();
        two.state = State::Failed;
        two.ending = Some(Ending::Displaced);
        (two.started, two.ended, two.starts) = (Some(6), Some(7), 2);
        store.change(|rows| rows.update_job(&two)).unwrap();
        drop(store);
        let store = Store::open(folder.path()).unwrap();
        store
            .read(|rows| {
                let reserved = rows.reservations(19)?;
                assert_eq!((reserved.len(), reserved[0].id), (1, one));
                assert_eq!((&reserved[0].nodes, reserved[0].span), (&nodes(), span));
                assert!(rows.reservations(20)?.is_empty());
                assert_eq!(rows.job(two.id)?, Some(two.clone()));
                assert_eq!(rows.job(99)?, None);
                assert_eq!(rows.jobs(&State::ALL)?, [two.clone()]);
                assert_eq!(rows.ended_jobs(5)?, [two.clone()]);
                assert_eq!(rows.files(two.id)?, files);
                Ok(())
            })
            .unwrap();
        store.change(|rows| rows.remove_files(two.id)).unwrap();
        assert!(store.read(|rows| rows.files(two.id)).unwrap().is_empty());
    }

    #[test]
    fn a_failed_change_leaves_the_database_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let failed: Result<(), LabError> = store.change(|rows| {
            rows.add_job(&job(), &BTreeMap::new())?;
            Err(LabError::Conflict("no".to_owned()))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no");
        assert!(
            store
                .read(|rows| rows.jobs(&State::ALL))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn databases_of_other_versions_or_programs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let path = folder.path().join(NAME);
        store
            .connection
            .lock()
            .unwrap()
            .pragma_update(None, "user_version", 7)
            .unwrap();
        drop(store);
        let told = |part: &str| {
            let error = Store::open(folder.path()).err().unwrap().to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        };
        told("tables of version 7, this taut reads 1");
        for name in fs::read_dir(folder.path()).unwrap() {
            fs::remove_file(name.unwrap().path()).unwrap();
        }
        fs::write(
            &path,
            "not a database at all, but long enough for its head. ".repeat(90),
        )
        .unwrap();
        told("damaged, or not a database");
    }
}
