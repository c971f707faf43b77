//! The summaries of a measurement's streams: at least one, in the order of the streams.

use super::summary::StreamSummary;
use serde::{Deserialize, Serialize, Serializer};

/// Summaries of one or more streams.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Streams {
    /// Summary of the first stream.
    pub first: StreamSummary,
    /// Summaries of all streams after the first.
    pub others: Vec<StreamSummary>,
}

impl Streams {
    /// Returns the summaries, the first stream's first.
    pub fn iter(&self) -> impl Iterator<Item = &StreamSummary> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl Serialize for Streams {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            streams: Vec<&'a StreamSummary>,
        }
        let streams = self.iter().collect();
        Written { streams }.serialize(serializer)
    }
}

/// The fields of a stored summary that contain the streams, in the format of this or an earlier version of taut.
#[derive(Deserialize)]
struct Stored {
    /// Summary of the first stream, if its fields are next to `streams` and not inside, as versions 0.1 and 0.2 wrote
    /// them.
    #[serde(flatten)]
    beside: Option<StreamSummary>,
    /// Summary of each stream; empty in some folders that version 0.1 wrote.
    #[serde(default)]
    streams: Vec<StreamSummary>,
}

impl TryFrom<Stored> for Streams {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let mut streams = stored.streams.into_iter();
        let first = streams.next().or(stored.beside);
        Ok(Self {
            first: first.ok_or("expected the summary of one stream or more in `streams`")?,
            others: streams.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn stream(name: &str) -> Value {
        json!({"name": name, "asked_pps": 1e4, "tally": {"owed": 6, "sent": 6, "refused": 0, "unsent": 0, "received": 3,
            "corrupt": 0, "foreign": 0, "seconds": 2.0, "stopped": false}})
    }

    /// Returns the names of the streams that are read from `value`.
    fn names(value: Value) -> Vec<String> {
        let streams: Streams = serde_json::from_value(value).unwrap();
        streams.iter().map(|stream| stream.name.clone()).collect()
    }

    #[test]
    fn streams_are_written_as_a_list_and_read_from_it() {
        let value = json!({"streams": [stream("a"), stream("b")]});
        let streams: Streams = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(names(value), ["a", "b"]);
        let written = serde_json::to_value(&streams).unwrap();
        assert_eq!(written.as_object().unwrap().len(), 1, "{written}");
        assert_eq!(written["streams"][1]["tally"]["sent"], 6);
        assert_eq!(names(written), ["a", "b"]);
    }

    #[test]
    fn fields_of_the_first_stream_beside_the_list_are_ignored() {
        let mut value = stream("a");
        value["streams"] = json!([stream("a"), stream("b")]);
        assert_eq!(names(value), ["a", "b"]);
    }

    #[test]
    fn fields_without_a_list_are_those_of_the_only_stream() {
        let mut value = stream("a");
        assert_eq!(names(value.clone()), ["a"]);
        value["streams"] = json!([]);
        assert_eq!(names(value), ["a"]);
    }

    #[test]
    fn a_summary_without_any_stream_is_refused() {
        for value in [json!({}), json!({"streams": []}), json!({"streams": [{}]})] {
            let error = serde_json::from_value::<Streams>(value.clone()).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("streams") || text.contains("missing field"),
                "{value}: {text}"
            );
        }
    }
}
