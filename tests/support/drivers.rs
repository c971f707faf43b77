//! Third-party programs that control the program under test: a PFCP control plane, BIRD, and Open vSwitch's
//! `ovs-ofctl`.

use super::hosts::{Namespace, in_namespace};
use super::program::Program;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use taut_wire::pfcp::{
    ElementType as E, FTeid, MessageType as M, OuterHeaderCreation, Seid, Writer,
};

/// Builds the content of a grouped PFCP element.
pub fn group(elements: &[(E, &[u8])]) -> Writer {
    let mut group = Writer::group();
    for (kind, value) in elements {
        group.element(*kind, value);
    }
    group
}

/// Builds a session establishment request with the given uplink tunnel and this user's downlink address, as an SMF
/// sends it.
pub fn establishment(sequence: u32, tunnel: FTeid, user: [u8; 4]) -> Vec<u8> {
    let seid = Seid {
        seid: 0x77,
        v4: Some([127, 0, 0, 1].into()),
        v6: None,
    };
    let mut message = Writer::message(M::SESSION_ESTABLISHMENT_REQUEST, Some(0), sequence);
    message.element(E::NODE_ID, &[0, 127, 0, 0, 1]);
    message.element(E::F_SEID, &seid.emit());
    for (id, source) in [(1_u16, 0_u8), (2, 1)] {
        let mut pdi = group(&[(E::SOURCE_INTERFACE, &[source])]);
        if source == 0 {
            pdi.element(E::F_TEID, &tunnel.emit());
        }
        pdi.element(E::UE_IP_ADDRESS, &[&[2], &user[..]].concat());
        let mut pdr = group(&[
            (E::PDR_ID, &id.to_be_bytes()),
            (E::PRECEDENCE, &[0, 0, 0, 255]),
        ]);
        pdr.grouped(E::PDI, &pdi);
        if source == 0 {
            pdr.element(E::OUTER_HEADER_REMOVAL, &[6]);
        }
        pdr.element(E::FAR_ID, &u32::from(id).to_be_bytes());
        message.grouped(E::CREATE_PDR, &pdr);
        // The uplink forwards immediately; the downlink buffers until the base station is known.
        let action = if source == 0 { 2 } else { 4 };
        let far = group(&[
            (E::FAR_ID, &u32::from(id).to_be_bytes()),
            (E::APPLY_ACTION, &[action]),
        ]);
        message.grouped(E::CREATE_FAR, &far);
    }
    message.finish().unwrap()
}

/// Builds the session modification request that sets the downlink tunnel, and requests an end marker in the previous
/// downlink tunnel.
pub fn moved(sequence: u32, seid: u64, teid: u32, remote: [u8; 4]) -> Vec<u8> {
    let creation = OuterHeaderCreation {
        teid,
        v4: Some(remote.into()),
        v6: None,
    };
    let mut parameters = group(&[(E::OUTER_HEADER_CREATION, &creation.emit())]);
    parameters.element(E::PFCPSMREQ_FLAGS, &[2]);
    let mut far = group(&[(E::FAR_ID, &[0, 0, 0, 2]), (E::APPLY_ACTION, &[2])]);
    far.grouped(E::UPDATE_FORWARDING_PARAMETERS, &parameters);
    let mut message = Writer::message(M::SESSION_MODIFICATION_REQUEST, Some(seid), sequence);
    message.grouped(E::UPDATE_FAR, &far);
    message.finish().unwrap()
}

/// Builds a PFCP message of the given elements.
pub fn simple(kind: M, seid: Option<u64>, sequence: u32, elements: &[(E, &[u8])]) -> Vec<u8> {
    let mut message = Writer::message(kind, seid, sequence);
    for (kind, value) in elements {
        message.element(*kind, value);
    }
    message.finish().unwrap()
}

/// Starts BIRD on a host, with files called `name` in `folder`; `birdc` connects to the socket whose name ends in
/// `.ctl`.
pub fn bird(host: &Namespace, folder: &Path, name: &str, config: &str) -> Program {
    let [file, control, pid] =
        ["conf", "ctl", "pid"].map(|end| folder.join(format!("{name}.{end}")));
    fs::write(&file, config).unwrap();
    let mut command = in_namespace(&host.0, "bird");
    command.args(["-f", "-c"]).arg(&file);
    Program::start(command.arg("-s").arg(&control).arg("-P").arg(&pid))
}

/// Builds the `birdc` command for the BIRD that listens at `control`.
pub fn birdc(control: &Path, words: &str) -> Command {
    let mut command = Command::new("birdc");
    command.arg("-s").arg(control).args(words.split(' '));
    command
}

/// Returns a table of `count` networks for BIRD, in the form of an include file.
pub fn networks(count: u32) -> String {
    (0..count).fold(String::new(), |mut text, number| {
        let network = (20 << 24) + (number << 8);
        let [a, b, c, _] = network.to_be_bytes();
        let _ = writeln!(text, "route {a}.{b}.{c}.0/24 blackhole;");
        text
    })
}

/// Builds the `ovs-ofctl` command for the switch at `address`.
pub fn ofctl(address: &str, words: &[&str]) -> Command {
    let mut command = Command::new("ovs-ofctl");
    command.args(["-O", "OpenFlow13", words[0], &format!("tcp:{address}")]);
    command.args(&words[1..]);
    command
}
