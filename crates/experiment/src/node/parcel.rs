//! Transfer of a run's files to a node and back, as a tar stream that contains only plain files and folders.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use tar::{Archive, Builder, EntryType, Header};
use taut_results::InsidePath;

/// A file that a node writes into the folder of a run.
#[derive(Debug, Clone)]
pub(crate) struct RunFile {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Packs `files` into a tar stream.
pub(crate) fn pack_files(files: &[RunFile]) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for file in files {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(file.text.len() as u64);
        archive.append_data(&mut header, &file.name, file.text.as_bytes())?;
    }
    archive.into_inner()
}

/// Writes every plain file below `folder` to `out` as a tar stream; links and sockets are skipped.
pub(crate) fn pack(folder: &Path, out: impl Write) -> io::Result<()> {
    let mut archive = Builder::new(out);
    for name in taut_results::files_below(folder)? {
        archive.append_file(&name, &mut File::open(folder.join(&name))?)?;
    }
    archive.into_inner()?.flush()
}

/// Writes the files of a tar stream into `folder`; names that lead out of the folder are refused.
pub(crate) fn unpack(stream: impl Read, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut archive = Archive::new(stream);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let plain = matches!(
            entry.header().entry_type(),
            EntryType::Regular | EntryType::Directory
        );
        if InsidePath::of(&name).is_err() || !plain {
            return Err(io::Error::other(format!(
                "{}: not a plain file below the run's folder; none of it is copied",
                name.display()
            )));
        }
        let path = folder.join(&name);
        if entry.header().entry_type() == EntryType::Directory {
            fs::create_dir_all(path)?;
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        io::copy(&mut entry, &mut File::create(path)?)?;
    }
    // The rest of the stream is read, so that the sender does not write into a closed pipe.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_are_unchanged_after_packing_and_unpacking() {
        let here = tempfile::tempdir().unwrap();
        let there = tempfile::tempdir().unwrap();
        let files = ["a.txt", "deep/er/b.txt"].map(|name| RunFile {
            name: name.into(),
            text: format!("text of {name}\n"),
        });
        unpack(&pack_files(&files).unwrap()[..], there.path()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", there.path().join("link")).unwrap();
        let mut stream = Vec::new();
        pack(there.path(), &mut stream).unwrap();
        unpack(&stream[..], here.path()).unwrap();
        for file in &files {
            assert_eq!(
                fs::read_to_string(here.path().join(&file.name)).unwrap(),
                file.text
            );
        }
        assert!(!here.path().join("link").exists());
    }

    #[test]
    fn unpacking_writes_no_file_outside_the_target_folder() {
        let outside = tempfile::tempdir().unwrap();
        let folder = outside.path().join("run");
        let stream = |name: &str, kind: EntryType| {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(1);
            // A malicious sender could write this name. The builder would refuse it, so the bytes are set directly.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            let mut archive = Builder::new(Vec::new());
            archive.append(&header, &b"x"[..]).unwrap();
            archive.into_inner().unwrap()
        };
        for (name, kind) in [
            ("../evil", EntryType::Regular),
            ("/tmp/taut-evil", EntryType::Regular),
            ("a/../../evil", EntryType::Regular),
            ("link", EntryType::Symlink),
            ("link", EntryType::Link),
            ("pipe", EntryType::Fifo),
        ] {
            let refused = unpack(&stream(name, kind)[..], &folder);
            assert!(refused.is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        unpack(&stream("good", EntryType::Regular)[..], &folder).unwrap();
        assert!(folder.join("good").exists());
    }

    #[test]
    fn a_truncated_stream_is_refused_with_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let stream = pack_files(&[RunFile {
            name: "a".into(),
            text: "x".repeat(2000),
        }])
        .unwrap();
        assert!(unpack(&stream[..1200], folder.path()).is_err());
    }
}
