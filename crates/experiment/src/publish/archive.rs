//! Published archives: packed so that the same results give the same bytes, and unpacked without trust.

use crate::agent::files_below;
use crate::error::ExperimentError;
use crate::node::parcel::is_inside;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use taut_lab::results::write_whole_with;

/// An archive of more is not unpacked, bytes.
const MOST_BYTES: u64 = 64 << 30;
/// An archive of more is not unpacked.
const MOST_ENTRIES: u64 = 5_000_000;

/// Packs a folder under its own name. `modified_s` is the time of all files, s since 1970.
pub(super) fn pack(folder: &Path, archive: &Path, modified_s: u64) -> Result<(), ExperimentError> {
    let name = PathBuf::from(folder.file_name().unwrap_or_default());
    let write = |file| {
        let out = GzEncoder::new(io::BufWriter::new(file), Compression::default());
        let mut tar = tar::Builder::new(out);
        for file in files_below(folder)? {
            let mut from = File::open(folder.join(&file))?;
            let mut header = tar::Header::new_gnu();
            header.set_size(from.metadata()?.len());
            header.set_mode(0o644);
            header.set_mtime(modified_s);
            tar.append_data(&mut header, name.join(&file), &mut from)?;
        }
        tar.into_inner()?.finish()?.flush()
    };
    Ok(write_whole_with(archive, write)?)
}

/// Whether a file is compressed as archives are.
pub(crate) fn is_archive(path: &Path) -> bool {
    let mut magic = [0; 2];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut magic))
        .is_ok_and(|()| magic == [0x1f, 0x8b])
}

/// Unpacks an archive and returns the one folder that it holds. Only plain files and folders below that one are
/// taken.
pub(crate) fn unpack(archive: &Path, into: &Path) -> Result<PathBuf, ExperimentError> {
    let wrong = |reason: String| ExperimentError::results(archive, reason);
    let damaged = |e: io::Error| wrong(format!("the archive is damaged: {e}"));
    let file = File::open(archive).map_err(ExperimentError::io(archive))?;
    let mut tar = tar::Archive::new(GzDecoder::new(io::BufReader::new(file)).take(MOST_BYTES));
    let mut top: Option<PathBuf> = None;
    let mut left = MOST_BYTES;
    for (number, entry) in (1_u64..).zip(tar.entries().map_err(damaged)?) {
        let mut entry = entry.map_err(damaged)?;
        let path = entry.path().map_err(damaged)?.into_owned();
        let shown = path.display().to_string();
        if number > MOST_ENTRIES || entry.size() > left {
            return Err(wrong(format!(
                "the archive is too large: more than {MOST_ENTRIES} files or {} GiB",
                MOST_BYTES >> 30
            )));
        }
        left -= entry.size();
        // Other programs begin names with `./`.
        let path: PathBuf = path
            .components()
            .filter(|part| *part != Component::CurDir)
            .collect();
        if !is_inside(&path) {
            return Err(wrong(format!(
                "`{shown}` leads out of the archive: it is not unpacked"
            )));
        }
        let folder = PathBuf::from(
            path.components()
                .next()
                .map_or("".as_ref(), Component::as_os_str),
        );
        if top.get_or_insert_with(|| folder.clone()) != &folder {
            return Err(wrong(format!(
                "`{shown}`: a published archive holds one folder"
            )));
        }
        let target = into.join(&path);
        match entry.header().entry_type() {
            tar::EntryType::Directory => {
                fs::create_dir_all(&target).map_err(ExperimentError::io(&target))?;
            }
            tar::EntryType::Regular => {
                let parent = target.parent().unwrap_or(into);
                fs::create_dir_all(parent).map_err(ExperimentError::io(parent))?;
                let mut out = File::create_new(&target).map_err(|e| match e.kind() {
                    io::ErrorKind::AlreadyExists => wrong(format!("`{shown}` is in it twice")),
                    _ => ExperimentError::io(&target)(e),
                })?;
                io::copy(&mut entry, &mut out).map_err(damaged)?;
            }
            _ => {
                return Err(wrong(format!(
                    "`{shown}` is neither a file nor a folder: it is not unpacked"
                )));
            }
        }
    }
    top.map(|top| into.join(top))
        .ok_or_else(|| wrong("the archive is empty".to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn packed(entries: &[(&str, tar::EntryType, &[u8])]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar.gz");
        let mut tar = tar::Builder::new(GzEncoder::new(
            File::create(&path).unwrap(),
            Compression::fast(),
        ));
        for (name, kind, data) in entries {
            let mut header = tar::Header::new_gnu();
            // Written by hand: the builder refuses such names itself.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(data.len() as u64);
            if *kind == tar::EntryType::Symlink {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            tar.append(&header, *data).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap();
        (dir, path)
    }

    fn refused(entries: &[(&str, tar::EntryType, &[u8])]) -> String {
        let (dir, path) = packed(entries);
        let into = dir.path().join("deep/into");
        fs::create_dir_all(&into).unwrap();
        let reason = unpack(&path, &into).unwrap_err().to_string();
        assert!(!dir.path().join("deep/x").exists() && !dir.path().join("x").exists());
        reason
    }

    #[test]
    fn nothing_leaves_the_folder() {
        use tar::EntryType::{Link, Regular, Symlink};
        assert!(refused(&[("../x", Regular, b"x")]).contains("leads out"));
        assert!(refused(&[("a/../../x", Regular, b"x")]).contains("leads out"));
        assert!(refused(&[("/tmp/x", Regular, b"x")]).contains("leads out"));
        assert!(refused(&[("a/x", Symlink, b"")]).contains("neither"));
        assert!(refused(&[("a/x", Link, b"")]).contains("neither"));
        assert!(refused(&[("a/x", Regular, b"x"), ("b/x", Regular, b"x")]).contains("one folder"));
        assert!(refused(&[("a/x", Regular, b"x"), ("a/x", Regular, b"x")]).contains("twice"));
        assert!(refused(&[]).contains("empty"));
    }

    #[test]
    fn what_is_packed_is_unpacked_and_the_same_gives_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("results");
        fs::create_dir_all(folder.join("runs/v1-r1")).unwrap();
        fs::write(folder.join("state.json"), "{}").unwrap();
        let long = format!("runs/v1-r1/{}", "long-name".repeat(20));
        fs::write(folder.join(&long), "deep").unwrap();
        let [one, two] = ["1.tar.gz", "2.tar.gz"].map(|name| dir.path().join(name));
        pack(&folder, &one, 7).unwrap();
        pack(&folder, &two, 7).unwrap();
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
        assert!(is_archive(&one) && !is_archive(&folder.join("state.json")));
        let into = dir.path().join("into");
        fs::create_dir(&into).unwrap();
        let top = unpack(&one, &into).unwrap();
        assert_eq!(fs::read_to_string(top.join(long)).unwrap(), "deep");
        // Cut off anywhere, it is damaged.
        let whole = fs::read(&one).unwrap();
        fs::write(&one, &whole[..whole.len() / 2]).unwrap();
        let again = dir.path().join("again");
        fs::create_dir(&again).unwrap();
        assert!(
            unpack(&one, &again)
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
    }
}
