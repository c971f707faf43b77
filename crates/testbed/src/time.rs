//! Times as users write and read them: RFC 3339, UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time, s since 1970 (UTC), or a duration, s.
pub type Seconds = u64;

/// Latest time that is accepted, s since 1970: the end of the year 2999.
const LATEST: Seconds = 32_503_680_000;

/// Returns the current time.
pub(crate) fn now() -> Seconds {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH);
    passed.map_or(0, |it| it.as_secs())
}

/// Returns a time as text, such as `2026-12-01T09:00:00Z`. A time after the year 2999 becomes the end of that year.
pub fn text(at: Seconds) -> String {
    taut_results::instant(UNIX_EPOCH + Duration::from_secs(at.min(LATEST)))
}

/// Parses a time: `2026-12-01T09:00:00Z`, or shorter as `2026-12-01 09:00`. Returns `None` for any other text.
pub fn parse(text: &str) -> Option<Seconds> {
    let text = text.trim();
    // A time without seconds is common in calendars.
    let whole = match text.len() {
        16 => format!("{text}:00"),
        _ => text.to_owned(),
    };
    let at = humantime::parse_rfc3339_weak(&whole).ok()?;
    let at = at.duration_since(UNIX_EPOCH).ok()?.as_secs();
    (at <= LATEST).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_with_and_without_seconds() {
        let at = Some(1_796_119_200);
        assert_eq!(parse("2026-12-01T10:00:00Z"), at);
        assert_eq!(parse("2026-12-01 10:00"), at);
        assert_eq!(text(1_796_119_200), "2026-12-01T10:00:00Z");
        for wrong in [
            "",
            "10:00",
            "2026-12-01",
            "2026-13-01 10:00",
            "-1",
            "éééééééé",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
