//! The packets that caused alerts, in a pcapng file of limited size. Each packet has comments that name its matching
//! rules.

use super::target::{append_to, is_gone};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};
use taut_capture::pcapng::{Section, interface, section};
use taut_port::pcap::annotated::{append_packet, packet_bytes};

/// The maximum length of a stored frame in bytes: an IP packet with the headers before it.
const SNAP_BYTES: u32 = 1 << 17;
/// The maximum length of a block in bytes: a frame and the comments for its matching rules.
const LONGEST_BLOCK_BYTES: u64 = 1 << 20;
/// The interval at which the file's path is checked.
const AGAIN: Duration = Duration::from_secs(1);
/// The first bytes of a pcapng file (draft-ietf-opsawg-pcapng section 4.1), in either byte order.
const BEGINNING: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A file to which packets are appended. Its earlier contents stay, and a new section follows them.
pub(super) struct PacketFile {
    path: String,
    file: File,
    /// The time of the last check of the path.
    looked: Instant,
    /// True if the file can be truncated to its last complete block.
    is_regular: bool,
    /// The length of the complete blocks in the file, in bytes. The next field is the size limit.
    written_bytes: u64,
    most_bytes: u64,
    /// The blocks that are not written to the file yet. The next field is the number of packets in them.
    blocks: Vec<u8>,
    packets: u64,
    /// The number of interfaces that the current section describes.
    interfaces: usize,
    left_out: u64,
}

impl PacketFile {
    /// Opens the file and begins a section in it.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or if it exists and is not pcapng.
    pub fn open(path: &str, most_bytes: u64) -> io::Result<Self> {
        let mut file = append_to(path)?;
        let facts = file.metadata()?;
        let is_regular = facts.is_file();
        let mut bytes = if is_regular { facts.len() } else { 0 };
        if bytes > 0 {
            let mut beginning = [0; 4];
            let is_ours = file.read_exact(&mut beginning).is_ok() && beginning == BEGINNING;
            if !is_ours {
                let what = "it exists and is not a pcapng file: choose another name, or remove it";
                return Err(io::Error::other(what));
            }
            // A full disk or a power failure may leave a truncated block, after which readers could not parse further
            // data.
            let whole = whole_bytes(&file, bytes)?;
            if whole < bytes {
                file.set_len(whole)?;
                bytes = whole;
            }
        }
        let mut opened = Self {
            path: path.to_string(),
            file,
            looked: Instant::now(),
            is_regular,
            written_bytes: bytes,
            most_bytes,
            blocks: Vec::new(),
            packets: 0,
            interfaces: 0,
            left_out: 0,
        };
        let about = Section::ours("packets that rules of an inspection fit");
        section(&mut opened.blocks, &about);
        opened.write();
        Ok(opened)
    }

    /// Checks at an interval whether the file was removed from its path, and then creates a new one. If that fails,
    /// packets are still written to the removed file.
    fn look(&mut self) {
        if self.looked.elapsed() < AGAIN {
            return;
        }
        self.looked = Instant::now();
        if is_gone(&self.file, &self.path)
            && let Ok(new) = Self::open(&self.path, self.most_bytes)
        {
            let left_out = self.left_out;
            *self = Self { left_out, ..new };
        }
    }

    /// Adds a packet with its ingress port to the pending blocks, if the file has space for it.
    pub fn put(&mut self, port: u8, time_ns: u64, frame: &[u8], comments: &[String]) {
        if self.packets == 0 {
            self.look();
        }
        let comments: Vec<&str> = comments.iter().map(String::as_str).collect();
        let before = self.blocks.len();
        let mut described = self.interfaces;
        while described <= usize::from(port) {
            interface(&mut self.blocks, &format!("port {described}"), SNAP_BYTES);
            described += 1;
        }
        let room = self.most_bytes.saturating_sub(self.written_bytes) as usize;
        if self.blocks.len() + packet_bytes(frame.len(), &comments) > room {
            self.blocks.truncate(before);
            self.left_out += 1;
            return;
        }
        self.interfaces = described;
        let (port, wire_bytes) = (u32::from(port), frame.len() as u32);
        append_packet(
            &mut self.blocks,
            port,
            time_ns,
            frame,
            wire_bytes,
            &comments,
        );
        self.packets += 1;
    }

    /// Writes the pending blocks. If a write fails, all pending blocks are lost.
    pub fn write(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        match self.file.write_all(&self.blocks) {
            Ok(()) => self.written_bytes += self.blocks.len() as u64,
            Err(_) => {
                self.left_out += self.packets;
                if self.is_regular {
                    // If this fails as well, readers find a truncated block.
                    let _ = self.file.set_len(self.written_bytes);
                }
                // The lost blocks may have contained the descriptions of the interfaces.
                self.interfaces = 0;
                self.blocks.clear();
                section(&mut self.blocks, &Section::ours(""));
                self.packets = 0;
                return;
            }
        }
        self.blocks.clear();
        self.packets = 0;
    }

    /// Returns the number of packets of alerts that are not in the file.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// Returns the length in bytes of the complete blocks of a file. `bytes` is the length of the file.
fn whole_bytes(file: &File, bytes: u64) -> io::Result<u64> {
    let mut file = BufReader::new(file);
    file.seek(SeekFrom::Start(0))?;
    let (mut at, mut is_big_endian) = (0, false);
    while at < bytes {
        let left = bytes - at;
        let mut head = [0; 12];
        let there = &mut head[..left.min(12) as usize];
        file.read_exact(there)?;
        if there.starts_with(&BEGINNING) && there.len() == 12 {
            is_big_endian = there[8..] == [0x1a, 0x2b, 0x3c, 0x4d];
        }
        let [_, _, _, _, a, b, c, d, ..] = head;
        let total = match is_big_endian {
            true => u32::from_be_bytes([a, b, c, d]),
            false => u32::from_le_bytes([a, b, c, d]),
        };
        if left < 12 {
            return Ok(at);
        }
        if total < 12 || !total.is_multiple_of(4) {
            return Ok(bytes);
        }
        if u64::from(total) > left {
            // The rest is longer than the longest block that this module writes, so the file is damaged, not merely
            // truncated.
            return Ok(if left > LONGEST_BLOCK_BYTES {
                bytes
            } else {
                at
            });
        }
        file.seek_relative(i64::from(total) - 12)?;
        at += u64::from(total);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_capture::pcapng::{Block, read};

    fn blocks(path: &std::path::Path) -> Vec<(u8, Vec<u8>)> {
        let bytes = std::fs::read(path).unwrap();
        let (mut found, mut rest) = (Vec::new(), &bytes[..]);
        while let Some((block, size)) = read(rest) {
            if let Block::Packet(record) = block {
                found.push((record.facts.port, record.frame.to_vec()));
            }
            rest = &rest[size..];
        }
        assert!(rest.is_empty());
        found
    }

    #[test]
    fn packets_are_appended_to_the_file_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts.pcapng");
        let open = || PacketFile::open(path.to_str().unwrap(), 4000).unwrap();
        let said = ["1:7:0 bad".to_string(), "1:8:0".to_string()];
        drop(open());
        assert!(blocks(&path).is_empty());
        let mut file = open();
        file.put(1, 5, &[7; 61], &said);
        file.put(0, 6, &[8; 60], &said);
        file.write();
        assert_eq!(blocks(&path), [(1, vec![7; 61]), (0, vec![8; 60])]);
        drop(file);
        let mut file = open();
        for _ in 0..100 {
            file.put(0, 7, &[9; 60], &said);
        }
        file.write();
        file.put(0, 8, &[1; 60], &said);
        file.write();
        let there = blocks(&path);
        assert_eq!(there.len() as u64 + file.left_out(), 2 + 101);
        assert!(there.len() > 10 && std::fs::metadata(&path).unwrap().len() <= 4000);
        let text = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("1:7:0 bad") && text.contains("port 1"));
    }

    #[test]
    fn removed_files_are_recreated_without_resetting_the_skipped_packet_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts.pcapng");
        let mut file = PacketFile::open(path.to_str().unwrap(), 4000).unwrap();
        let said = ["1:7:0".to_string()];
        file.put(0, 5, &[1; 5000], &said);
        file.put(0, 5, &[1; 61], &said);
        file.write();
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        file.looked -= 2 * AGAIN;
        file.put(0, 5, &[2; 61], &said);
        file.write();
        assert_eq!(blocks(&path), [(0, vec![2; 61])]);
        assert_eq!(file.left_out(), 1);
    }

    #[test]
    fn packets_appended_after_a_truncated_block_are_readable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alerts.pcapng");
        let open = || PacketFile::open(path.to_str().unwrap(), 1 << 20).unwrap();
        let put = |number: u8| {
            let mut file = open();
            file.put(0, 5, &[number; 61], &["1:7:0".to_string()]);
            file.write();
        };
        put(1);
        put(2);
        let whole = std::fs::read(&path).unwrap();
        let first = [(0, vec![1; 61])];
        for cut in 1..100 {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            put(3);
            let found = blocks(&path);
            assert_eq!(found[..1], first, "{cut}");
            assert_eq!(found[1..], [(0, vec![3; 61])], "{cut}");
        }
        // The file is not truncated if it has other damage.
        let damaged = [&whole[..], &[0; 40]].concat();
        std::fs::write(&path, &damaged).unwrap();
        put(3);
        assert!(std::fs::read(&path).unwrap().starts_with(&damaged));
    }

    #[test]
    fn a_file_that_is_no_pcapng_stays_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "mine").unwrap();
        let refused = PacketFile::open(path.to_str().unwrap(), 4000)
            .err()
            .unwrap();
        assert!(
            refused.to_string().contains("not a pcapng file"),
            "{refused}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("new"), &link).unwrap();
        assert!(PacketFile::open(link.to_str().unwrap(), 4000).is_err());
        let full = PacketFile::open("/dev/full", 4000);
        if let Ok(mut full) = full {
            full.put(0, 1, &[1; 60], &["x".to_string()]);
            full.write();
            assert_eq!(full.left_out(), 1);
        }
    }
}
