//! The access of a user to a laboratory: its address and the token, which is never an argument.

use crate::exit::Failure;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use taut_live::http_client::{self, Url};
use taut_testbed::{Client, ClientError, parse_time, time_text};

/// Environment variables that replace options.
const ADDRESS: &str = "TAUT_LAB";
const TOKEN: &str = "TAUT_TOKEN";

#[derive(clap::Args)]
pub struct Access {
    /// Address of the laboratory, such as http://127.0.0.1:9210 (default: the variable TAUT_LAB)
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// File with your token (default: the variable TAUT_TOKEN, or ~/.config/taut/token)
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Access {
    /// Returns a client of the laboratory.
    pub fn client(&self) -> Result<Client, Failure> {
        let to = self.to.clone().or_else(|| std::env::var(ADDRESS).ok());
        let to = to.ok_or_else(|| {
            Failure::Input(format!(
                "which laboratory? Say --to URL, or set {ADDRESS}, such as http://127.0.0.1:9210"
            ))
        })?;
        let url: Url = to
            .parse()
            .map_err(|e: http_client::ClientError| Failure::Input(e.to_string()))?;
        Ok(Client::new(url, &self.token()?))
    }

    fn token(&self) -> Result<String, Failure> {
        let token = match (&self.token_file, std::env::var(TOKEN)) {
            (Some(file), _) => read(file)?,
            (None, Ok(token)) => token,
            (None, Err(_)) => match default_file() {
                Some(file) if file.exists() => read(&file)?,
                _ => {
                    return Err(Failure::Input(format!(
                        "no token: set {TOKEN}, say --token-file FILE, or put it into ~/.config/taut/token; the \
                         operator of the laboratory makes one with taut lab token"
                    )));
                }
            },
        };
        let token = token.trim();
        match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(token.to_owned()),
            false => Err(Failure::Input(
                "the token is empty, or is no single word".to_owned(),
            )),
        }
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|e| Failure::of_file(&e, format!("{}: {e}", file.display())))
}

fn default_file() -> Option<PathBuf> {
    let folder = match std::env::var_os("XDG_CONFIG_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".config"),
    };
    Some(folder.join("taut/token"))
}

/// Parses a duration such as `90m` or `2h`; returns seconds.
pub fn seconds(text: &str) -> Result<u64, String> {
    let parsed = humantime::parse_duration(text.trim()).map(|it| it.as_secs());
    match parsed {
        Ok(seconds) if seconds > 0 => Ok(seconds),
        _ => Err("expected a length of time such as 90m, 2h or 1day".to_owned()),
    }
}

/// Parses a time in UTC, or relative to now such as `+2h`.
pub fn time_of(text: &str) -> Result<String, Failure> {
    let at = match text.strip_prefix('+') {
        Some(length) => seconds(length).ok().and_then(|length| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.ok()?.as_secs().checked_add(length)
        }),
        None => parse_time(text),
    };
    at.map(time_text).ok_or_else(|| {
        Failure::Input(
            "expected a time in UTC such as '2026-12-01 09:00', or from now such as +2h".to_owned(),
        )
    })
}

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        let text = e.to_string();
        match e {
            ClientError::Refused { status, .. } if status >= 500 => Self::Missing(text),
            ClientError::Refused { .. } | ClientError::Id(_) => Self::Input(text),
            ClientError::Io { ref source, .. } => Self::of_file(source, text),
            ClientError::Results(e) => e.into(),
            ClientError::Http(_) | ClientError::Json { .. } => Self::Missing(text),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_are_absolute_or_relative_to_now() {
        assert_eq!(time_of("2026-12-01 09:00").unwrap(), "2026-12-01T09:00:00Z");
        assert!(parse_time(&time_of("+2h").unwrap()).is_some());
        let never = time_of("+99999999999y").unwrap();
        assert!(never.starts_with("3000-01-01"), "{never}");
        for wrong in ["", "+", "+0s", "9:00", "2h"] {
            assert!(time_of(wrong).is_err(), "{wrong}");
        }
    }
}
