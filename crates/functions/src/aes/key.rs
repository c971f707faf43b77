//! The key that both endpoints share, and the keys derived from it, one per session. The shared key comes from a file
//! or the environment, so that it is in no chain file and no process list.

use ring::hkdf;
use serde::Deserialize;
use std::path::PathBuf;
use taut_function::SettingsError;
use taut_settings::{key_of_hex, shared_key};

/// A key of 16 or 32 bytes that encrypts no packets; session keys are derived from it.
pub(super) struct Master {
    extract: Vec<u8>,
    info: Vec<u8>,
}

/// An endpoint of the encrypted link, as the setting `end` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum End {
    A,
    B,
}

impl End {
    pub(super) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// The number of bytes of a key that the derivation (HKDF) produces.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Master {
    /// Reads the shared key from a file or from the environment.
    pub(super) fn read(
        file: Option<PathBuf>,
        environment: Option<String>,
    ) -> Result<Vec<u8>, SettingsError> {
        let wrong = |text| Err(SettingsError(text));
        match (file, environment) {
            (Some(path), None) => {
                shared_key(&path).map_err(|e| SettingsError(format!("key_file: {e}")))
            }
            (None, Some(name)) => match std::env::var(&name) {
                Ok(text) => key_of_hex(&text).ok_or_else(|| {
                    SettingsError(format!("key_env: {name} does not contain 32 or 64 hexadecimal digits"))
                }),
                Err(_) => wrong(format!(
                    "key_env: the variable {name} is not set: export {name}=$(openssl rand -hex 16)"
                )),
            },
            _ => wrong(
                "aes needs either `key_file` or `key_env`: key_file = \"FILE\", where FILE is made \
                 by (umask 077; openssl rand -hex 16 > FILE)"
                    .to_string(),
            ),
        }
    }

    /// Creates the master key for the packets that one endpoint sends. Different values of `mode` and `from` result in
    /// different session keys.
    pub(super) fn new(key: Vec<u8>, mode: &str, from: Option<End>) -> Self {
        let from = match from {
            None => "",
            Some(End::A) => " from a",
            Some(End::B) => " from b",
        };
        Self {
            info: format!("taut aes 2 {} {mode}{from}", 8 * key.len()).into_bytes(),
            extract: key,
        }
    }

    /// Derives the key for the packets of a session from number `epoch` * 2^32 on. The derived key has the length of
    /// the shared key. (HKDF of RFC 5869 with SHA-256.)
    pub(super) fn derive(&self, session: &[u8; 9], epoch: u32) -> ([u8; 32], usize) {
        let mut salt = [0; 13];
        salt[..9].copy_from_slice(session);
        salt[9..].copy_from_slice(&epoch.to_be_bytes());
        let length = self.extract.len();
        let mut key = [0; 32];
        let pseudo_random = hkdf::Salt::new(hkdf::HKDF_SHA256, &salt).extract(&self.extract);
        let done = pseudo_random
            .expand(&[&self.info], Length(length))
            .and_then(|derived| derived.fill(&mut key[..length]));
        // HKDF fails only for lengths beyond 255 hashes.
        assert!(done.is_ok(), "HKDF gives 16 and 32 bytes");
        (key, length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_private_files_provide_keys_in_hex_or_binary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let read = |content: &[u8], mode| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Master::read(Some(path.clone()), None).map_err(|e| e.0)
        };
        let digits = b"000102030405060708090a0b0c0d0e0F\n";
        let key: Vec<u8> = (0..16).collect();
        assert_eq!(read(digits, 0o600).unwrap(), key);
        assert_eq!(read(&key, 0o400).unwrap(), key);
        assert_eq!(read(&[7; 32], 0o600).unwrap(), [7; 32]);
        assert_eq!(read(&[b'a'; 64], 0o600).unwrap(), [0xAA; 32]);
        assert!(read(digits, 0o640).unwrap_err().contains("chmod 600"));
        for wrong in [&digits[1..], b"", &[7; 24], &[b'a'; 5000]] {
            assert!(read(wrong, 0o600).unwrap_err().contains("key_file: "));
        }
        let missing = Master::read(Some(folder.path().join("none")), None);
        assert!(missing.unwrap_err().0.contains("cannot read"));
        let folder_itself = Master::read(Some(folder.path().to_path_buf()), None);
        assert!(folder_itself.unwrap_err().0.contains("no key"));
        let none = Master::read(None, None).unwrap_err().0;
        assert!(none.contains("needs either"));
        let unset = Master::read(None, Some("TAUT_NO_SUCH_KEY".to_string()));
        assert!(unset.unwrap_err().0.contains("TAUT_NO_SUCH_KEY"));
    }

    #[test]
    fn keys_differ_by_session_epoch_mode_direction_and_master_key() {
        let derive = |byte, length, mode, from, session, epoch| {
            let master = Master::new(vec![byte; length], mode, from);
            let (key, length) = master.derive(&[session; 9], epoch);
            key[..length].to_vec()
        };
        let base = derive(1, 16, "gcm", None, 2, 3);
        assert_eq!(base.len(), 16);
        assert_eq!(base, derive(1, 16, "gcm", None, 2, 3));
        let others = [
            derive(9, 16, "gcm", None, 2, 3),
            derive(1, 32, "gcm", None, 2, 3),
            derive(1, 16, "ctr", None, 2, 3),
            derive(1, 16, "gcm", Some(End::A), 2, 3),
            derive(1, 16, "gcm", Some(End::B), 2, 3),
            derive(1, 16, "gcm", None, 9, 3),
            derive(1, 16, "gcm", None, 2, 9),
        ];
        let keys = others.iter().map(|key| &key[..16]).chain([&base[..]]);
        assert_eq!(keys.collect::<std::collections::HashSet<_>>().len(), 8);
    }
}
