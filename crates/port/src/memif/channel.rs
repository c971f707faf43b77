//! The control channel: a UNIX SEQPACKET socket that carries messages and file descriptors.

use super::message::{MESSAGE_BYTES, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The time limit for the peer's next message of the handshake, ms.
const PATIENCE_MS: i64 = 2_000;

/// The reason why a connection to a memif peer ended or could not be established.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer reported: {0}")]
    Refused(String),
    #[error("the peer violates the memif protocol: {0}")]
    Protocol(String),
    /// The peer is refused, because client and server do not agree on a required setting.
    #[error("{0}")]
    Mismatch(String),
    #[error("no reply from the peer for {} ms", PATIENCE_MS)]
    Silent,
    #[error("this port is being closed")]
    Stopping,
    #[error("{0}")]
    System(String),
}

impl From<Errno> for ChannelError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN => Self::Closed,
            e => Self::System(std::io::Error::from(e).to_string()),
        }
    }
}

pub(super) struct Channel<'a> {
    socket: OwnedFd,
    /// File that becomes readable when the port of this channel is being closed.
    stop: BorrowedFd<'a>,
}

impl<'a> Channel<'a> {
    pub(super) fn new(socket: OwnedFd, stop: BorrowedFd<'a>) -> Self {
        Self { socket, stop }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the file that becomes readable when this port is being closed.
    pub(super) fn stop(&self) -> BorrowedFd<'a> {
        self.stop
    }

    pub(super) fn send(
        &self,
        message: &Message,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ChannelError> {
        let bytes = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds;
        if let Some(fd) = fd {
            fds = [fd];
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        sendmsg(
            &self.socket,
            &[IoSlice::new(&bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Sends a Disconnect message, if the peer still listens.
    pub(super) fn disconnect(&self, reason: &str) {
        let _ = self.send(
            &Message::Disconnect {
                code: 0,
                reason: reason.to_string(),
            },
            None,
        );
    }

    /// Waits for the next message of the handshake, and returns the message with the file that was passed with it, if
    /// any.
    pub(super) fn receive(&self) -> Result<(Message, Option<OwnedFd>), ChannelError> {
        if !wait(&[self.socket.as_fd()], self.stop, Some(PATIENCE_MS))?[0] {
            return Err(ChannelError::Silent);
        }
        self.take()
    }

    /// Receives a message that has arrived, as [`Channel::receive`] does. A peer's Disconnect becomes an error.
    pub(super) fn take(&self) -> Result<(Message, Option<OwnedFd>), ChannelError> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        )?;
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        let mut fd = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                // The protocol allows one file per message; further files are closed when they are dropped.
                fd = fds.last().or(fd);
            }
        }
        match Message::decode(&bytes[..received.bytes]) {
            Ok(Message::Disconnect { reason, .. }) => {
                Err(ChannelError::Refused(reason.replace(char::is_control, "?")))
            }
            Ok(message) => Ok((message, fd)),
            Err(e) => Err(ChannelError::Protocol(e.to_string())),
        }
    }

    /// Receives the next message and checks that it is an acknowledgement.
    pub(super) fn expect_ack(&self) -> Result<(), ChannelError> {
        match self.receive()?.0 {
            Message::Ack => Ok(()),
            other => Err(ChannelError::Protocol(format!(
                "expected an acknowledgement, got {other:?}"
            ))),
        }
    }
}

/// Waits until any of `fds` is readable or `timeout_ms` has passed; returns for each file whether it is readable.
///
/// # Errors
/// [`ChannelError::Stopping`] as soon as the file that announces the closing of the port is readable.
pub(super) fn wait<const N: usize>(
    fds: &[BorrowedFd<'_>; N],
    stop: BorrowedFd<'_>,
    timeout_ms: Option<i64>,
) -> Result<[bool; N], ChannelError> {
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    polled.push(PollFd::from_borrowed_fd(stop, PollFlags::IN));
    let timeout = timeout_ms.map(|ms| Timespec {
        tv_sec: ms / 1000,
        tv_nsec: (ms % 1000) * 1_000_000,
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    if !polled[N].revents().is_empty() {
        return Err(ChannelError::Stopping);
    }
    Ok(std::array::from_fn(|i| !polled[i].revents().is_empty()))
}
