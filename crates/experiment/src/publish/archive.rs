//! Published archives: packing gives equal bytes for equal results, and unpacking treats the archive as untrusted
//! input.

use crate::copying::{Failed, copy};
use crate::error::ExperimentError;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tar::EntryType;
use taut_results::{InsidePath, NotInside, files_below, write_whole_with};

/// Maximum total size of the files that are unpacked from an archive, bytes.
const MOST_BYTES: u64 = 64 << 30;
/// Maximum number of entries in an archive.
const MOST_ENTRIES: u64 = 2_000_000;
/// Maximum ratio of unpacked to packed size for archives that unpack to more than 64 MiB; archives of results have a
/// lower ratio.
const MOST_GROWTH: u64 = 250;
/// Maximum size of the names and other metadata of an entry, bytes.
const MOST_EXTENSION_BYTES: u64 = 64 << 10;

/// Packs a folder into an archive, under the folder's name. `modified_s` becomes the modification time of all files, s
/// since 1970.
pub(super) fn pack(folder: &Path, archive: &Path, modified_s: u64) -> Result<(), ExperimentError> {
    let name = PathBuf::from(folder.file_name().unwrap_or_default());
    let write = |file| {
        pack_into(io::BufWriter::new(file), folder, &name, modified_s, |_| {
            true
        })
    };
    Ok(write_whole_with(archive, write)?)
}

/// Writes a results folder as an archive (tar, compressed with gzip), in which `name` is the top folder. Runs in
/// progress are skipped. `modified_s` becomes the modification time of all files, s since 1970.
///
/// # Errors
/// A file cannot be read, or `out` cannot be written.
pub fn write_results(
    out: impl Write,
    folder: &Path,
    name: &str,
    modified_s: u64,
) -> io::Result<()> {
    let is_whole = |file: &Path| {
        let parts = file.iter().map(|part| part.to_string_lossy());
        !parts.into_iter().any(|part| part.ends_with(".partial"))
    };
    pack_into(out, folder, Path::new(name), modified_s, is_whole)
}

fn pack_into(
    out: impl Write,
    folder: &Path,
    name: &Path,
    modified_s: u64,
    is_wanted: impl Fn(&Path) -> bool,
) -> io::Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(out, Compression::default()));
    for file in files_below(folder)?.iter().filter(|file| is_wanted(file)) {
        let from = File::open(folder.join(file))?;
        let size = from.metadata()?.len();
        let mut header = tar::Header::new_gnu();
        header.set_size(size);
        header.set_mode(0o644);
        header.set_mtime(modified_s);
        // The file may grow while it is read.
        let mut from = from.take(size);
        tar.append_data(&mut header, name.join(file), &mut from)?;
        if from.limit() > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    tar.into_inner()?.finish()?.flush()
}

/// Returns true if a file is compressed with gzip, as published archives are.
pub(crate) fn is_archive(path: &Path) -> bool {
    let mut magic = [0; 2];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut magic))
        .is_ok_and(|()| magic == [0x1f, 0x8b])
}

/// Unpacks an archive and returns its top folder, which must be the only one. Only plain files and folders in it are
/// unpacked.
///
/// # Errors
/// The archive is damaged, names a file outside of `into` or a special file, or is implausibly large.
pub fn unpack(archive: &Path, into: &Path) -> Result<PathBuf, ExperimentError> {
    let wrong = |reason: String| ExperimentError::results(archive, reason);
    let damaged = damage(archive);
    let file = File::open(archive).map_err(ExperimentError::io(archive))?;
    let packed = file.metadata().map_err(ExperimentError::io(archive))?.len();
    let mut left = packed
        .saturating_mul(MOST_GROWTH)
        .saturating_add(64 << 20)
        .min(MOST_BYTES);
    let stream = GzDecoder::new(io::BufReader::new(file)).take(left);
    let mut tar = tar::Archive::new(stream);
    let mut top: Option<String> = None;
    let mut told = None;
    // Entries are read raw, to limit the length of a name in a preceding entry.
    for (number, entry) in (1_u64..).zip(tar.entries().map_err(damaged)?.raw(true)) {
        let mut entry = entry.map_err(damaged)?;
        let (kind, size) = (entry.header().entry_type(), entry.size());
        if number > MOST_ENTRIES || size > left {
            return Err(wrong(format!(
                "the archive is too large: more than {MOST_ENTRIES} files, {} GiB, or {MOST_GROWTH} times its own size",
                MOST_BYTES >> 30
            )));
        }
        left -= size;
        if matches!(
            kind,
            EntryType::GNULongName | EntryType::XHeader | EntryType::XGlobalHeader
        ) {
            if size > MOST_EXTENSION_BYTES {
                return Err(wrong(format!(
                    "the archive is damaged: a name of {size} bytes"
                )));
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(damaged)?;
            match kind {
                EntryType::GNULongName => told = Some(bytes),
                EntryType::XHeader => told = name_in(&bytes).map_err(damaged)?.or(told),
                _ => {}
            }
            continue;
        }
        let name = told
            .take()
            .unwrap_or_else(|| entry.path_bytes().into_owned());
        let name = inside_path(archive, &name)?;
        let folder = name.as_str().split('/').next().unwrap_or_default();
        if top.get_or_insert_with(|| folder.to_owned()) != folder {
            return Err(wrong(format!(
                "`{name}`: a published archive holds one folder"
            )));
        }
        unpack_entry(archive, &mut entry, &name, into)?;
    }
    top.map(|top| into.join(top))
        .ok_or_else(|| wrong("the archive is empty".to_owned()))
}

/// Returns a function that converts an error in reading an archive to the message that the archive is damaged.
fn damage(archive: &Path) -> impl Fn(io::Error) -> ExperimentError + Copy {
    move |e| ExperimentError::results(archive, format!("the archive is damaged: {e}"))
}

/// Returns the name of an entry as a path inside the folder into which the archive is unpacked.
fn inside_path(archive: &Path, name: &[u8]) -> Result<InsidePath, ExperimentError> {
    let name = String::from_utf8_lossy(name);
    let name = name.trim_end_matches('\0');
    InsidePath::new(&plain(name)).map_err(|_| {
        let reason = format!(
            "{} points outside the archive: it is not unpacked",
            NotInside::shown(name)
        );
        ExperimentError::results(archive, reason)
    })
}

/// Creates the file or folder of an entry below `into`.
fn unpack_entry(
    archive: &Path,
    entry: &mut tar::Entry<'_, impl Read>,
    name: &InsidePath,
    into: &Path,
) -> Result<(), ExperimentError> {
    let wrong = |reason: String| ExperimentError::results(archive, reason);
    let damaged = damage(archive);
    match entry.header().entry_type() {
        EntryType::Directory => {
            let target = name.in_folder(into);
            fs::create_dir_all(&target).map_err(ExperimentError::io(&target))
        }
        EntryType::Regular => {
            let size = entry.size();
            let mut out = name.create(into).map_err(|e| match e.kind() {
                io::ErrorKind::AlreadyExists => wrong(format!("`{name}` occurs twice")),
                _ => ExperimentError::io(name.in_folder(into))(e),
            })?;
            let copied = copy(entry, &mut out).map_err(|e| match e {
                Failed::Reading(e) => damaged(e),
                Failed::Writing(e) => ExperimentError::io(name.in_folder(into))(e),
            })?;
            if copied != size {
                return Err(damaged(io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(())
        }
        _ => Err(wrong(format!(
            "`{name}` is neither a file nor a folder: it is not unpacked"
        ))),
    }
}

/// Returns the name of an entry without the leading `./` and the trailing `/` that some programs add.
fn plain(name: &str) -> String {
    let name = name.strip_suffix('/').unwrap_or(name);
    let parts: Vec<&str> = name.split('/').filter(|part| *part != ".").collect();
    parts.join("/")
}

/// Returns the name in a POSIX extended header (pax), which is the name of the entry after it.
fn name_in(header: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut name = None;
    for record in tar::PaxExtensions::new(header) {
        let record = record?;
        match record.key_bytes() {
            b"path" => name = Some(record.value_bytes().to_vec()),
            // This size would differ from the size in the entry's own header.
            b"size" => return Err(io::Error::other("a file of 8 GiB or more")),
            _ => {}
        }
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn packed(entries: &[(&str, EntryType, &[u8])]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar.gz");
        let mut tar = tar::Builder::new(GzEncoder::new(
            File::create(&path).unwrap(),
            Compression::fast(),
        ));
        for (name, kind, data) in entries {
            let mut header = tar::Header::new_gnu();
            // The name is written directly into the header, because the builder refuses it.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(data.len() as u64);
            if *kind == EntryType::Symlink {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            tar.append(&header, *data).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap();
        (dir, path)
    }

    fn refused(entries: &[(&str, EntryType, &[u8])]) -> String {
        let (dir, path) = packed(entries);
        let into = dir.path().join("deep/into");
        fs::create_dir_all(&into).unwrap();
        let reason = unpack(&path, &into).unwrap_err().to_string();
        assert!(!dir.path().join("deep/x").exists() && !dir.path().join("x").exists());
        reason
    }

    #[test]
    fn archive_entries_that_lead_outside_their_folder_are_refused() {
        use EntryType::{Link, Regular, Symlink};
        assert!(refused(&[("../x", Regular, b"x")]).contains("points outside"));
        assert!(refused(&[("a/../../x", Regular, b"x")]).contains("points outside"));
        assert!(refused(&[("/tmp/x", Regular, b"x")]).contains("points outside"));
        assert!(refused(&[("a/x", Symlink, b"")]).contains("neither"));
        assert!(refused(&[("a/x", Link, b"")]).contains("neither"));
        assert!(refused(&[("a/x", Regular, b"x"), ("b/x", Regular, b"x")]).contains("one folder"));
        assert!(refused(&[("a/x", Regular, b"x"), ("a/x", Regular, b"x")]).contains("twice"));
        assert!(refused(&[]).contains("empty"));
    }

    /// Makes an archive whose entries have exactly the given names, types, sizes and contents.
    fn raw(entries: &[(&str, EntryType, u64, &[u8])]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar.gz");
        let mut out = GzEncoder::new(File::create(&path).unwrap(), Compression::fast());
        for (name, kind, size, data) in entries {
            let mut header = tar::Header::new_ustar();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(*size);
            header.set_cksum();
            out.write_all(header.as_bytes()).unwrap();
            out.write_all(data).unwrap();
            out.write_all(&vec![0; data.len().wrapping_neg() % 512])
                .unwrap();
        }
        out.write_all(&[0; 1024]).unwrap();
        out.finish().unwrap();
        (dir, path)
    }

    fn unpacked(entries: &[(&str, EntryType, u64, &[u8])]) -> Result<Vec<PathBuf>, String> {
        let (dir, path) = raw(entries);
        let into = dir.path().join("into");
        fs::create_dir(&into).unwrap();
        unpack(&path, &into).map_err(|e| e.to_string())?;
        Ok(files_below(&into).unwrap())
    }

    #[test]
    fn entry_names_and_sizes_of_an_archive_are_limited() {
        use EntryType::{GNULongName, Regular, XGlobalHeader, XHeader};
        // Other programs put the name in a preceding entry, of the POSIX or of the GNU format.
        let pax = b"15 path=a/deep\n";
        let global = b"14 comment=xy\n";
        for before in [
            ("x", XHeader, 15, &pax[..]),
            ("././@LongLink", GNULongName, 7, &b"a/deep\0"[..]),
        ] {
            let all = [
                ("g", XGlobalHeader, 14, &global[..]),
                before,
                ("a/x", Regular, 1, b"x"),
            ];
            assert_eq!(unpacked(&all).unwrap(), [PathBuf::from("a/deep")]);
        }
        let long = vec![b'a'; 1 << 20];
        for kind in [GNULongName, XHeader, XGlobalHeader] {
            let message =
                unpacked(&[("x", kind, 1 << 20, &long), ("a/x", Regular, 1, b"x")]).unwrap_err();
            assert!(message.contains("a name of 1048576 bytes"), "{message}");
        }
        for (before, part) in [
            (&b"16 path=../../x\n"[..], "points outside"),
            (&b"13 path=/a/x\n"[..], "points outside"),
            (&b"20 size=99999999999\n"[..], "8 GiB"),
            (&b"9999 path=x\n"[..], "damaged"),
        ] {
            let message = unpacked(&[
                ("x", XHeader, before.len() as u64, before),
                ("a/x", Regular, 1, b"x"),
            ])
            .unwrap_err();
            assert!(
                message.contains(part) && !message.contains('\n'),
                "{message}"
            );
        }
        // These sizes exceed the archive, or are implausible for its size.
        for size in [5000, 1 << 32, u64::MAX >> 12, u64::MAX] {
            let message = unpacked(&[("a/x", Regular, size, b"x")]).unwrap_err();
            assert!(
                message.contains("too large") || message.contains("damaged"),
                "{size}: {message}"
            );
        }
    }

    #[test]
    fn archives_unpack_to_their_input_and_are_reproducible() {
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
        // A truncated archive is damaged, wherever it ends.
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
