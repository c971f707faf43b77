//! Runs the bodies of this crate's fuzz targets with seeded random inputs, on the stable toolchain.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/experiment_file.rs"]
mod experiment_file;
#[allow(dead_code)]
#[path = "../../../fuzz/bodies/published.rs"]
mod published;

#[path = "../../../fuzz/bodies/deposit.rs"]
mod deposit;

/// Fragments from which the inputs, experiment files, are composed.
const PIECES: [&str; 40] = [
    "title = 't'\n",
    "[loop]\n",
    "a = [1, 2]\n",
    "b = ['x', 'y']\n",
    "c = { from = 1, to = 9, by = 2 }\n",
    "c = { from = 0, to = 1e300, by = 1 }\n",
    "d = { from = 1, to = 1e6, steps = 1000, scale = 'log' }\n",
    "[[step]]\n",
    "run = 'echo {{ a }}'\n",
    "run = '{{ b }} {{ c }} {{ run }}'\n",
    "name = 'one'\n",
    "json = true\n",
    "background = true\n",
    "[plan]\n",
    "repetitions = 3\n",
    "repetitions = 1000000\n",
    "warm_up = 4000000000\n",
    "order = 'random'\n",
    "limit = '99999999999s'\n",
    "only = ['a > 1']\n",
    "until = { metric = 'x', within = 0.1, at_most = 4000000000 }\n",
    "[variables]\n",
    "v = '{{ w }}{{ w }}'\n",
    "w = '{{ v }}'\n",
    "[[zip]]\n",
    "[nodes.n]\n",
    "at = 'ssh://a@b:22'\n",
    "setup = ['true']\n",
    "[[link]]\n",
    "between = ['n:x', 'm:y']\n",
    "[[file]]\n",
    "name = '../x'\n",
    "text = 'x'\n",
    "from = 'y'\n",
    "[[table]]\n",
    "metrics = ['m']\n",
    "[[figure]]\n",
    "kind = 'cdf'\n",
    "[[claim]]\n",
    "value = '1'\nholds = 'value > 0'\ntext = 'x'\n",
];

#[test]
fn parsing_random_experiment_files_never_panics() {
    let mut random = fastrand::Rng::with_seed(0xE4F);
    for _ in 0..1500 {
        let mut text = String::from("title = 't'\n");
        for _ in 0..random.usize(..12) {
            text += random.choice(PIECES).unwrap();
        }
        let mut bytes = text.into_bytes();
        if random.bool() {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        experiment_file::plan(&bytes);
    }
}

#[test]
fn replies_of_services_and_daemons_never_panic() {
    let pieces = [
        "HTTP/1.1 ",
        "HTTP/2 ",
        "100",
        "200",
        " OK\r\n",
        "\r\n\r\n",
        "Retry-After: ",
        "9",
        "{\"id\":\"a-1\",",
        "\"hits\":{\"hits\":[",
        "\"pids\":{}}",
        "[{\"id\":1,",
        "]",
        "}",
        ",",
        "-0.1",
        "1e308",
        "nan",
        "Normal",
        "portState SLAVE\n",
        "gmPresent true\n",
        "master_offset ",
        "meanPathDelay ",
        "\n",
        "0,0,0,0,",
    ];
    let mut random = fastrand::Rng::with_seed(0xDE9);
    for _ in 0..2000 {
        let text: String = (0..random.usize(..16))
            .map(|_| random.choice(pieces).unwrap())
            .collect();
        let mut bytes = text.into_bytes();
        if let Some(at) = (0..bytes.len()).last().map(|last| random.usize(..=last)) {
            bytes[at] = random.u8(..);
        }
        deposit::reply(&bytes);
    }
}

#[test]
fn unpacking_random_bytes_as_an_archive_never_panics() {
    let mut random = fastrand::Rng::with_seed(0xA2C);
    for _ in 0..120 {
        let mut bytes = vec![0; random.usize(1..200)];
        random.fill(&mut bytes);
        published::archive(&bytes);
    }
}

#[test]
fn the_fuzzing_corpus_replays_without_panics() {
    corpus::replay("experiment_file", experiment_file::plan);
    corpus::replay("published_archive", published::archive);
}
