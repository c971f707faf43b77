//! Connections to machines by the system's OpenSSH, with the user's own settings, keys and known hosts.

use std::fmt;
use std::process::Command;
use std::str::FromStr;

/// The address of a machine as `ssh://user@host:port`; user and port may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshAddress {
    /// The host, with the user if one is given.
    pub destination: String,
    /// The port, if it differs from the port in ssh's own settings.
    pub port: Option<u16>,
}

impl FromStr for SshAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text
            .strip_prefix("ssh://")
            .ok_or("expected ssh://user@host:port")?;
        let (destination, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                let port = port
                    .parse()
                    .map_err(|_| format!("`{port}` is not a port number"))?;
                (host, Some(port))
            }
            _ => (rest, None),
        };
        // ssh would read a text that begins with a dash as an option.
        if destination.is_empty() || destination.starts_with('-') {
            return Err("ssh:// needs a host".to_owned());
        }
        Ok(Self {
            destination: destination.replace(['[', ']'], ""),
            port,
        })
    }
}

/// Formats the address as the `ssh` command that a person would type to connect to the machine.
impl fmt::Display for SshAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ssh ")?;
        if let Some(port) = self.port {
            write!(f, "-p {port} ")?;
        }
        f.write_str(&self.destination)
    }
}

impl SshAddress {
    /// Returns the `ssh` command that runs the command line `words` on the machine with this address, with additional
    /// `options` of ssh. The `ssh` command never prompts.
    pub fn command(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-T", "-a", "-x"]);
        let own = [
            "BatchMode=yes",
            "ConnectTimeout=10",
            // An unresponsive machine is detected after 15 s.
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            "ClearAllForwardings=yes",
            "PermitLocalCommand=no",
            "LogLevel=ERROR",
        ];
        for option in own.iter().chain(options) {
            command.args(["-o", option]);
        }
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
        command
            .arg(&self.destination)
            .arg(format!("exec {}", quoted.join(" ")));
        command
    }
}

/// Returns a word quoted so that any login shell reads it unchanged.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns a word as a person would type it: quoted only if the shell would interpret it.
pub fn quote_if_needed(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=%+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    quote(word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ssh_addresses_are_parsed_and_printed_as_commands() {
        for (text, shown) in [
            ("ssh://root@dut:2222", "ssh -p 2222 root@dut"),
            ("ssh://dut", "ssh dut"),
            ("ssh://root@[fd00::1]:22", "ssh -p 22 root@fd00::1"),
        ] {
            assert_eq!(text.parse::<SshAddress>().unwrap().to_string(), shown);
        }
        for wrong in ["dut", "ssh://", "ssh://a:b", "ssh://-oProxyCommand=x", ""] {
            assert!(wrong.parse::<SshAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn quoted_words_pass_a_shell_unchanged() {
        for word in [
            "plain",
            "",
            "two words",
            "it's",
            "$HOME",
            "`id`",
            "a\nb",
            "\\",
        ] {
            let out = Command::new("sh")
                .args(["-c", &format!("printf %s {}", quote(word))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&out.stdout), word);
        }
    }
}
