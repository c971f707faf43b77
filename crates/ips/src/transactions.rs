//! Rules about a request and its response together (`=>`).
#![allow(clippy::unwrap_used)]

use super::tests::{ids, ips, segment};
use taut_function::testing::batch_of;
use taut_function::{Context, Function};
use taut_inspect::tcp::{ACK, SYN};

const RULES: &str = "alert http any any => any 8080 (http.uri; content:\"/secret\"; http.stat_code; content:\"200\"; sid:1;)\n\
     alert http any any => any any (http.method; content:\"POST\"; http.request_body; content:\"key=\"; http.response_body; content:\"granted\"; sid:2;)\n\
     alert http any any => any any (http.content_type: to_server; content:\"json\"; http.content_type: to_client; content:\"xml\"; sid:3;)\n\
     alert http any any => any 81 (http.uri; content:\"/secret\"; http.stat_code; content:\"200\"; sid:4;)\n";

const NONE: [u64; 0] = [];

/// A connection through the inspection, and the next sequence numbers of both endpoints.
struct Exchange {
    function: Box<dyn Function>,
    folder: tempfile::TempDir,
    next: [u32; 2],
}

impl Exchange {
    fn new(rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut it = Self {
            function: ips(folder.path(), rules, ""),
            folder,
            next: [100, 500],
        };
        assert!(it.passes(&segment(true, SYN, (99, 0), b"")));
        assert!(it.passes(&segment(false, SYN | ACK, (499, 100), b"")));
        assert!(it.passes(&segment(true, ACK, (100, 500), b"")));
        it
    }

    fn passes(&mut self, frame: &[u8]) -> bool {
        let mut batch = batch_of(frame, 64);
        let context = Context {
            to_port: 1,
            ports: 2,
            ..Context::default()
        };
        self.function.process(&mut batch, &context);
        batch.is_kept(0)
    }

    /// Sends a segment with the text from the client or the server; returns true if the segment passes.
    fn says(&mut self, is_client: bool, text: &str) -> bool {
        let [client, server] = self.next;
        let numbers = if is_client {
            (client, server)
        } else {
            (server, client)
        };
        let passes = self.passes(&segment(is_client, ACK, numbers, text.as_bytes()));
        self.next[usize::from(!is_client)] += text.len() as u32;
        passes
    }

    /// Returns the identifiers of the rules that have matched in the exchange.
    fn alerts(self) -> Vec<u64> {
        drop(self.function);
        ids(self.folder.path())
    }
}

fn answer(status: u16, head: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} Said\r\n{head}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the numbers of the rules that match an exchange of the given texts. A text that begins with `HTTP` is the
/// server's.
fn alerts_of(texts: &[&str]) -> Vec<u64> {
    let mut exchange = Exchange::new(RULES);
    for text in texts {
        assert!(exchange.says(!text.starts_with("HTTP"), text));
    }
    exchange.alerts()
}

#[test]
fn a_transaction_rule_matches_only_request_and_response_together() {
    let secret = "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n";
    let other = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n";
    let (found, refused) = (answer(200, "", ""), answer(403, "", ""));
    let (found, refused) = (found.as_str(), refused.as_str());
    assert_eq!(alerts_of(&[secret, found]), [1]);
    assert_eq!(alerts_of(&[secret, refused]), NONE);
    assert_eq!(alerts_of(&[other, found]), NONE);
    // In a connection each response belongs to its request.
    assert_eq!(alerts_of(&[secret, refused, other, found]), NONE);
    assert_eq!(
        alerts_of(&[&[secret, other].concat(), refused, found]),
        NONE
    );
    assert_eq!(alerts_of(&[&[secret, other].concat(), found, refused]), [1]);
    assert_eq!(
        alerts_of(&[secret, "HTTP/1.1 100 Continue\r\n\r\n", found]),
        [1]
    );
    // The number of pending requests equals the limit; the last request matches.
    let many = format!("{}{secret}", other.repeat(15));
    let answers = refused.repeat(15);
    assert_eq!(alerts_of(&[&many, &answers, found]), [1]);
    assert_eq!(alerts_of(&[&many, &answers, refused]), NONE);
}

#[test]
fn responses_beyond_the_request_limit_may_match_any_request() {
    let secret = "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n";
    let other = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n";
    let many = format!("{}{secret}", other.repeat(20));
    let answers = answer(403, "", "").repeat(20);
    assert_eq!(alerts_of(&[&many, &answers, &answer(200, "", "")]), [1]);
}

#[test]
fn the_response_may_match_before_the_request_is_complete() {
    let head = "POST /key HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n";
    let early = answer(200, "", "granted");
    assert_eq!(alerts_of(&[head, &early, "key=8765"]), [2]);
    assert_eq!(alerts_of(&[head, "key=8765", &early]), [2]);
    assert_eq!(alerts_of(&[head, &early, "yek=8765"]), NONE);
}

#[test]
fn buffers_match_only_the_message_direction_given_in_the_rule() {
    let request = |of: &str| format!("GET / HTTP/1.1\r\nHost: a\r\nContent-Type: a/{of}\r\n\r\n");
    let response = |of: &str| answer(200, &format!("Content-Type: a/{of}\r\n"), "");
    assert_eq!(alerts_of(&[&request("json"), &response("xml")]), [3]);
    assert_eq!(alerts_of(&[&request("xml"), &response("json")]), NONE);
}

#[test]
fn a_response_that_completes_a_dropped_transaction_is_dropped() {
    let rules = RULES.replace("alert", "drop");
    let mut exchange = Exchange::new(&rules);
    assert!(exchange.says(true, "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(!exchange.says(false, &answer(200, "", "")));
    assert_eq!(exchange.alerts(), [1]);
}
