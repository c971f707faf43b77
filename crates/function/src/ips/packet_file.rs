//! The packets that alerts are about, in a pcapng file of a limited size: each with the rules that it fits as comments.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use taut_capture::pcapng::{Section, interface, section};
use taut_port::pcap::annotated::{append_packet, packet_bytes};

/// Longest frame: IP packets with what is in front of them.
const SNAP_BYTES: u32 = 1 << 17;
/// What a pcapng file begins with (draft-ietf-opsawg-pcapng section 4.1), in either order of bytes.
const BEGINNING: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A file that packets are put behind each other in. What is there when it is opened stays, and a section of its own
/// begins behind it.
pub(super) struct PacketFile {
    file: File,
    /// Whether it can be cut back to its last whole block.
    is_regular: bool,
    /// Bytes of whole blocks in the file, and how many it may have.
    written_bytes: u64,
    most_bytes: u64,
    /// Blocks that are written next, and packets in them.
    blocks: Vec<u8>,
    packets: u64,
    /// Interfaces that were described.
    interfaces: usize,
    left_out: u64,
}

impl PacketFile {
    /// Opens the file, and begins a section in it.
    ///
    /// # Errors
    /// When it cannot be written, or is there and no pcapng file.
    pub fn open(path: &str, most_bytes: u64) -> io::Result<Self> {
        // Links are not followed: who may write into the folder must not have root write elsewhere.
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(0o640)
            .custom_flags(flags)
            .open(path)?;
        let facts = file.metadata()?;
        let is_regular = facts.is_file();
        if is_regular && facts.len() > 0 {
            let mut beginning = [0; 4];
            let is_ours = file.read_exact(&mut beginning).is_ok() && beginning == BEGINNING;
            if !is_ours {
                let what = "it is there and no pcapng file: choose another name, or take it away";
                return Err(io::Error::other(what));
            }
        }
        let mut opened = Self {
            file,
            is_regular,
            written_bytes: if is_regular { facts.len() } else { 0 },
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

    /// Puts a packet that came in through that port into what is written next, if the file may have it.
    pub fn put(&mut self, port: u8, time_ns: u64, frame: &[u8], comments: &[String]) {
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

    /// Writes what was put into it. What the disk does not take is left out, whole.
    pub fn write(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        match self.file.write_all(&self.blocks) {
            Ok(()) => self.written_bytes += self.blocks.len() as u64,
            Err(_) => {
                self.left_out += self.packets;
                if self.is_regular {
                    // Where that fails, too, readers find a block that is cut short.
                    let _ = self.file.set_len(self.written_bytes);
                }
                // They may have been described in what was left out.
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

    /// Packets that are not in the file.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
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
    fn packets_are_put_behind_what_was_there_up_to_the_size_that_it_may_have() {
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
    fn a_file_that_is_something_else_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "mine").unwrap();
        let refused = PacketFile::open(path.to_str().unwrap(), 4000)
            .err()
            .unwrap();
        assert!(refused.to_string().contains("no pcapng file"), "{refused}");
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
