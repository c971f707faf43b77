//! Counts of what PFCP peers have sent that came to nothing, and of what became of peers, for whoever asks.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident: $text:literal),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(in super::super) enum Counted { $($(#[$doc])* $name),* }

        const NAMES: &[&str] = &[$($text),*];
    };
}

counted! {
    /// Sessions that there are: no count, but how many.
    Sessions: "sessions",
    /// Messages from an address that is none of the peers'.
    Stranger: "from strangers",
    /// Datagrams that are no PFCP message of whatever version.
    Unreadable: "unreadable",
    /// A request that was sent again: the same response again.
    SentAgain: "requests sent again",
    /// Responses that had to go before their time, as there was no memory for more.
    Forgotten: "responses forgotten early",
    /// Sessions or rules beyond a limit (cause 75).
    Full: "refused for want of resources",
    /// Requests about a session that is not there (cause 65).
    NoSession: "refused for want of the session",
    /// Requests of a peer without an association (cause 72).
    NoAssociation: "refused for want of an association",
    /// Rules that cannot be, or name what is not there (cause 73).
    WrongRule: "refused for a rule",
    /// Requests that lack an element, or have one that is wrong or of the wrong length (causes 66, 68, 69).
    WrongElement: "refused for an element",
    /// Requests for what is not there (causes 71 and 76).
    Unsupported: "refused as not supported",
    /// Requests that could not be done, as the data path or the kernel takes no changes (cause 77).
    Failed: "refused for a failure",
    /// Heartbeats that were sent as often as they may be, and never answered.
    Unanswered: "heartbeats unanswered",
    /// Peers that have said nothing for as long as they may, and lost their sessions.
    Silent: "peers silent",
    /// Peers that have started anew, and lost their sessions.
    Restarted: "peers restarted",
    /// Packets that are kept now, until their users are reached: no count, but how many.
    Held: "packets held",
    /// Usage reports that were sent of ourselves.
    UsageReports: "usage reports",
    /// Reports of packets to users who are to be reached.
    DownlinkReports: "downlink data reports",
    /// Requests of ours that were sent as often as they may be and never answered, or that were too many.
    GivenUp: "reports given up",
    /// Peers of tunnels that do not answer now: no count, but how many.
    LostPeers: "tunnel peers lost",
    /// Times that a peer of tunnels was lost.
    PathFailures: "path failures",
}

#[derive(Debug, Default)]
pub(in super::super) struct Counts([AtomicU64; NAMES.len()]);

impl Counts {
    pub fn add(&self, what: Counted, count: u64) {
        self.0[what as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub fn set(&self, what: Counted, count: usize) {
        self.0[what as usize].store(count as u64, Ordering::Relaxed);
    }

    /// Returns the counts by name.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        NAMES.iter().copied().zip(counts).collect()
    }
}
