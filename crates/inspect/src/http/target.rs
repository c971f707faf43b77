//! The target of a request in the form that rules test: without scheme and host, decoded once, with its path as a
//! server resolves it.

use super::head::{Part, Side};
use super::memory::Memory;
use std::ops::Range;

impl Side {
    /// Decodes the target once, and resolves its path as a server does.
    pub(super) fn normalise_target(&mut self, target: Part) {
        let (from, begin) = (self.made.len(), target.range().start);
        let host = normalise(&self.head[target.range()], &mut self.made);
        self.authority = host.map_or(Part::default(), |host| {
            Part::new(begin + host.start, begin + host.end)
        });
        self.target = Part::new(from, self.made.len());
    }
}

/// Appends the target to `made`, decoded once and with its path as a server resolves it. Returns the range of host and
/// port in `target`; none if the target is not an absolute URI.
pub(crate) fn normalise(target: &[u8], made: &mut Memory) -> Option<Range<usize>> {
    let from = made.len();
    let (mut at, mut authority) = (0, None);
    if let Some((host, path)) = split_absolute(target) {
        authority = Some(host);
        at = path;
        if target.get(at) != Some(&b'/') {
            // An absent path means `/`.
            made.push(b"/");
        }
    }
    let mut in_query = false;
    while at < target.len() && made.room() > 0 {
        let hex = |at: usize| char::from(target[at]).to_digit(16);
        let byte = match target[at] {
            b'%' if at + 2 < target.len() => match (hex(at + 1), hex(at + 2)) {
                (Some(high), Some(low)) => {
                    at += 2;
                    (high << 4 | low) as u8
                }
                _ => b'%',
            },
            byte => {
                if byte == b'?' && !in_query {
                    fold_last(made, from);
                    in_query = true;
                }
                byte
            }
        };
        at += 1;
        made.push(&[byte]);
        if !in_query && byte == b'/' && made.len() > from + 1 {
            fold_path(made, from);
        }
    }
    if !in_query {
        fold_last(made, from);
    }
    authority
}

/// Resolves the last segment of the path: a slash follows a final `.` or `..` implicitly (RFC 3986 section 5.2.4).
fn fold_last(made: &mut Memory, begin: usize) {
    let path = made.get(begin..).unwrap_or_default();
    let is_dots = path.ends_with(b"/.") || path.ends_with(b"/..");
    if is_dots && made.push(b"/") > 0 {
        fold_path(made, begin);
    }
}

/// Resolves the segment before a slash in the path: an empty segment, `.` or `..` is removed.
fn fold_path(made: &mut Memory, begin: usize) {
    let path = &made[begin..made.len() - 1];
    let Some(slash) = memchr::memrchr(b'/', path) else {
        return;
    };
    let len = match &path[slash + 1..] {
        b"" | b"." => slash + 1,
        b".." => memchr::memrchr(b'/', &path[..slash]).unwrap_or(slash) + 1,
        _ => return,
    };
    made.truncate(begin + len);
}

/// Returns the range of host and port in an absolute target, and the offset of its path; none for another target.
fn split_absolute(target: &[u8]) -> Option<(Range<usize>, usize)> {
    let scheme = target.iter().position(|&byte| byte == b':')?;
    let is_scheme = target[..scheme]
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    if scheme == 0 || !is_scheme || !target[scheme..].starts_with(b"://") {
        return None;
    }
    let begin = scheme + 3;
    let path = target[begin..]
        .iter()
        .position(|byte| b"/?#".contains(byte))
        .map_or(target.len(), |it| begin + it);
    // A user name may precede the host.
    let host = target[begin..path]
        .iter()
        .rposition(|&byte| byte == b'@')
        .map_or(begin, |it| begin + it + 1);
    Some((host..path, path))
}
