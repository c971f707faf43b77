//! Tests of deposits at a server that replies as documented, with faults at every step.

#![allow(clippy::unwrap_used)]

mod mock;

use self::mock::{Fault, Mock, TOKEN};
use super::*;
use crate::publish::sums::write_sums;
use serde_json::json;
use std::time::Duration;

/// A published folder with its archive.
struct Published {
    place: tempfile::TempDir,
}

/// Observer that records the messages to the user, and does not really wait.
#[derive(Default)]
struct Told {
    notes: Vec<String>,
    waited: Duration,
}

impl Observer for Told {
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn wait(&mut self, time: Duration) {
        self.waited += time;
    }
}

impl Published {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("latency");
        fs::create_dir(&folder).unwrap();
        let root = json!({
            "@id": "./", "name": "Latency", "description": "Of a link", "datePublished": "2026-12-01T09:00:00Z",
            "author": { "@id": "#author-1" }, "license": { "@id": "https://spdx.org/licenses/CC-BY-4.0" },
        });
        let author = json!({ "@id": "#author-1", "@type": "Person", "familyName": "Lovelace", "givenName": "Ada" });
        write_json(
            &folder.join("ro-crate-metadata.json"),
            &json!({ "@graph": [root, author] }),
        )
        .unwrap();
        write_sums(&folder).unwrap();
        pack(&folder, &place.path().join("latency.tar.gz"), 7).unwrap();
        Self { place }
    }

    fn folder(&self) -> PathBuf {
        self.place.path().join("latency")
    }

    fn archive(&self) -> Vec<u8> {
        fs::read(self.place.path().join("latency.tar.gz")).unwrap()
    }

    fn deposit_as(
        &self,
        to: &str,
        mock: &Mock,
        token: &str,
        is_final: bool,
    ) -> (Result<Deposited, DepositError>, Told) {
        let options = DepositOptions {
            destination: to.parse().unwrap(),
            token: token.parse().unwrap(),
            github_api: mock.url.parse().unwrap(),
            tag: None,
            is_final,
        };
        let mut told = Told::default();
        let done = deposit(&self.folder(), &options, &mut told);
        let all = format!("{done:?} {:?}", told.notes);
        let error = done
            .as_ref()
            .err()
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(!all.contains(TOKEN) && !error.contains(TOKEN), "{all}");
        assert!(!error.contains('\n'), "{error}");
        (done, told)
    }

    fn deposit(&self, to: &str, mock: &Mock, is_final: bool) -> Result<Deposited, DepositError> {
        self.deposit_as(to, mock, TOKEN, is_final).0
    }
}

const GITHUB: &str = "github:o/r";

/// The requests of a deposit that change something at the service.
const INVENIO_STEPS: [&str; 6] = [
    "POST /api/records",
    "POST /api/records/abc-0/draft/pids/doi",
    "POST /api/records/abc-0/draft/files",
    "PUT /api/records/abc-0/draft/files/latency.tar.gz/content",
    "POST /api/records/abc-0/draft/files/latency.tar.gz/commit",
    "POST /api/records/abc-0/draft/actions/publish",
];
const GITHUB_STEPS: [&str; 3] = [
    "POST /repos/o/r/releases",
    "POST /uploads/0",
    "PATCH /repos/o/r/releases/0",
];

/// Returns for each service its address for `--to`, and the steps of a deposit there.
fn services(mock: &Mock) -> [(String, &'static [&'static str]); 2] {
    [
        (mock.url.clone(), &INVENIO_STEPS),
        (GITHUB.to_owned(), &GITHUB_STEPS),
    ]
}

#[test]
fn a_deposit_is_a_draft_with_reserved_doi_until_published() {
    let (mock, published) = (Mock::start(), Published::new());
    let draft = published.deposit(&mock.url, &mock, false).unwrap();
    assert_eq!(draft.doi.as_deref(), Some("10.5281/zenodo.0"));
    assert_eq!(draft.page, format!("{}/uploads/abc-0", mock.url));
    assert!(!draft.published && !draft.continued);
    {
        let world = mock.world();
        assert_eq!(world.only_file(), published.archive());
        let metadata = &world.stored[0].body["metadata"];
        assert_eq!(metadata["publication_date"], "2026-12-01");
        assert_eq!(metadata["rights"][0]["id"], "cc-by-4.0");
        assert_eq!(
            metadata["creators"][0]["person_or_org"]["family_name"],
            "Lovelace"
        );
        assert!(!world.stored[0].is_published);
    }
    // The file is not sent again.
    let last = published.deposit(&mock.url, &mock, true).unwrap();
    assert!(last.published && last.continued && last.doi == draft.doi);
    assert_eq!(last.page, format!("{}/records/abc-0", mock.url));
    let again = published.deposit(&mock.url, &mock, true).unwrap();
    assert_eq!(again, last);
    let world = mock.world();
    assert_eq!((world.count("PUT "), world.stored.len()), (1, 1));
}

#[test]
fn a_release_is_a_draft_until_published() {
    let (mock, published) = (Mock::start(), Published::new());
    let draft = published.deposit(GITHUB, &mock, false).unwrap();
    assert!(!draft.published && !draft.continued && draft.doi.is_none());
    mock.world().leave_starter("latency.tar.gz");
    let last = published.deposit(GITHUB, &mock, true).unwrap();
    assert!(last.published && last.continued);
    assert_eq!(published.deposit(GITHUB, &mock, true).unwrap(), last);
    let world = mock.world();
    assert_eq!(world.only_file(), published.archive());
    assert_eq!(
        (world.count("DELETE "), world.count("POST /uploads")),
        (1, 2)
    );
}

#[test]
fn no_fault_of_a_single_request_makes_a_second_deposit() {
    let faults = [
        Fault::Status(502, None),
        Fault::DiesInTheMiddle,
        Fault::DiesBeforeTheReply,
    ];
    for number in 0..2 {
        for fault in faults {
            // Each step has the fault once, in one deposit.
            let (mock, published) = (Mock::start(), Published::new());
            let (to, steps) = &services(&mock)[number];
            mock.world().faults = steps.iter().map(|step| (*step, fault, 1)).collect();
            mock.world().index_delay = 2;
            let done = published.deposit(to, &mock, true).unwrap();
            assert!(done.published, "{to} {fault:?}");
            assert_eq!(mock.world().only_file(), published.archive());
        }
    }
}

#[test]
fn an_interrupted_deposit_is_continued_by_the_next_call() {
    for number in 0..2 {
        let (mock, published) = (Mock::start(), Published::new());
        let (to, steps) = &services(&mock)[number];
        for step in *steps {
            mock.world().faults = vec![
                (*step, Fault::DiesBeforeTheReply, 1),
                (*step, Fault::Status(500, None), 9),
            ];
            let _ = published.deposit(to, &mock, true);
        }
        mock.world().faults.clear();
        assert!(published.deposit(to, &mock, true).unwrap().published);
        assert_eq!(mock.world().only_file(), published.archive());
    }
}

#[test]
fn a_draft_whose_creation_had_no_reply_is_found_again() {
    let (mock, published) = (Mock::start(), Published::new());
    mock.world().faults = vec![
        ("POST /api/records", Fault::DiesBeforeTheReply, 1),
        ("POST /api/records", Fault::Status(500, None), 4),
    ];
    // The index has the draft only after the first call has ended.
    mock.world().index_delay = 18;
    let error = published.deposit(&mock.url, &mock, false).unwrap_err();
    assert!(
        error.to_string().contains("failed 5 times: status 500"),
        "{error}"
    );
    assert!(
        published
            .deposit(&mock.url, &mock, false)
            .unwrap()
            .continued
    );
    assert_eq!(mock.world().stored.len(), 1);
}

#[test]
fn a_busy_service_gets_the_time_that_it_requests() {
    for (status, number) in [(429, 0), (429, 1), (403, 1), (503, 0)] {
        let (mock, published) = (Mock::start(), Published::new());
        let (to, steps) = &services(&mock)[number];
        mock.world().faults = vec![(steps[0], Fault::Status(status, Some(70)), 2)];
        let (done, told) = published.deposit_as(to, &mock, TOKEN, false);
        done.unwrap();
        assert_eq!(told.waited, Duration::from_secs(140));
        assert_eq!(told.notes[0], "127.0.0.1 is busy: waiting 70 s");
        mock.world().faults = vec![("GET", Fault::Status(status, Some(3600)), 1)];
        let error = published.deposit(to, &mock, false).unwrap_err().to_string();
        assert!(error.contains("accepts no request for 3600 s"), "{error}");
    }
}

#[test]
fn refusals_name_the_cause_and_what_to_do() {
    for number in 0..2 {
        let (mock, published) = (Mock::start(), Published::new());
        let (to, steps) = &services(&mock)[number];
        let (done, _) = published.deposit_as(to, &mock, "another-token", false);
        let error = done.unwrap_err().to_string();
        assert!(
            error.contains("the token is not valid: make another one at http"),
            "{error}"
        );
        for (step, status, expected) in [
            (steps[0], 403, "the token does not allow this"),
            (steps[0], 400, "is refused (status 400)"),
            (
                if number == 0 { steps[3] } else { steps[1] },
                413,
                "latency.tar.gz is larger than the service accepts",
            ),
        ] {
            mock.world().faults = vec![(step, Fault::Status(status, None), 1)];
            let error = published.deposit(to, &mock, false).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        // Refusals are not repeated.
        assert!(published.deposit(to, &mock, true).unwrap().published);
        assert_eq!(mock.world().only_file(), published.archive());
    }
}

#[test]
fn damaged_uploads_are_deleted_and_reported() {
    let (mock, published) = (Mock::start(), Published::new());
    mock.world().faults = vec![(INVENIO_STEPS[3], Fault::Damages, 1)];
    let error = published
        .deposit(&mock.url, &mock, true)
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("latency.tar.gz arrived damaged: repeat the command"),
        "{error}"
    );
    assert!(published.deposit(&mock.url, &mock, true).unwrap().published);
    assert_eq!(mock.world().only_file(), published.archive());
}

#[test]
fn deposits_that_are_not_of_this_archive_are_refused() {
    let (mock, published) = (Mock::start(), Published::new());
    published.deposit(GITHUB, &mock, false).unwrap();
    // The release has the tag of another archive.
    let other = Published::new();
    pack(
        &other.folder(),
        &other.place.path().join("latency.tar.gz"),
        8,
    )
    .unwrap();
    let error = other.deposit(GITHUB, &mock, false).unwrap_err().to_string();
    assert!(
        error.contains("release latency exists and is not of this archive"),
        "{error}"
    );
    // The token is sent to no other host.
    let (mock, published) = (Mock::start(), Published::new());
    mock.world().upload_host = Some("https://evil.example");
    let error = published
        .deposit(GITHUB, &mock, false)
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("upload_url is at another host"), "{error}");
}

#[test]
fn a_deleted_draft_is_reported() {
    let (mock, published) = (Mock::start(), Published::new());
    published.deposit(&mock.url, &mock, false).unwrap();
    mock.world().stored.clear();
    let error = published
        .deposit(&mock.url, &mock, false)
        .unwrap_err()
        .to_string();
    assert!(error.contains("deposit abc-0 was deleted there"), "{error}");
}

#[test]
fn services_that_do_not_listen_are_reported() {
    let (mock, published) = (Mock::start(), Published::new());
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (done, told) = published.deposit_as(&format!("http://{closed}"), &mock, TOKEN, false);
    let error = done.unwrap_err();
    assert!(
        error.is_missing() && error.to_string().contains("cannot be reached"),
        "{error}"
    );
    assert_eq!(told.waited, Duration::from_secs(15));
}

#[test]
fn destinations_are_services_or_repositories() {
    assert_eq!(
        "zenodo".parse::<Destination>().unwrap(),
        "https://zenodo.org".parse::<Destination>().unwrap()
    );
    assert_eq!(
        "github:a/b.c".parse::<Destination>().unwrap(),
        Destination::GitHub("a/b.c".to_owned())
    );
    for wrong in [
        "",
        "github:",
        "github:a",
        "github:a/b/c",
        "github:a/..",
        "github:a/b?x",
        "figshare",
    ] {
        assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
    }
}
