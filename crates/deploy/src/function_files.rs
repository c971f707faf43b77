//! Files and variables that functions read: keys, lists of bearers. They must be copied when a function runs elsewhere.

use std::path::PathBuf;
use taut_engine::Stage;

/// Returns the texts in the functions' settings whose key matches.
fn settings<'a>(
    functions: &'a [Stage],
    fits: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = &'a str> {
    let all = functions.iter().flat_map(|stage| stage.settings.iter());
    all.filter(move |(key, _)| fits(key))
        .filter_map(|(_, value)| value.as_str())
}

/// Returns the files that these functions read. A setting called `file` may also be a file to write.
pub(crate) fn files(functions: &[Stage]) -> Vec<PathBuf> {
    let paths = settings(functions, |key| key.ends_with("_file") || key == "load");
    paths
        .chain(functions.iter().flat_map(by_function))
        .map(PathBuf::from)
        .collect()
}

/// Returns the files in those settings whose key depends on the function.
fn by_function(stage: &Stage) -> Vec<&str> {
    let key = match stage.name.as_str() {
        "lua" | "plugin" => "file",
        "ips" => "rules",
        "route" => "routes",
        _ => return Vec::new(),
    };
    let value = stage.settings.get(key);
    let one = value.and_then(|value| value.as_str());
    // Kernel routes are not in a file.
    let one = one.filter(|text| key != "routes" || *text != "kernel");
    let several = value.and_then(|value| value.as_array()).into_iter();
    let several = several.flatten().filter_map(|value| value.as_str());
    one.into_iter().chain(several).collect()
}

/// Returns the names of the environment variables that these functions read.
pub(crate) fn variables(functions: &[Stage]) -> Vec<String> {
    let names = settings(functions, |key| key.ends_with("_env"));
    names.map(str::to_owned).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn files_and_variables_are_told_by_their_keys() {
        let texts = [
            "aes(key_file=/keys/a.hex, mode=gcm)",
            "aes(key_env=SECRET)",
            "plugin(file=/lib/mine.so)",
            "record(file=/tmp/out.pcapng)",
            "ips(rules=[/etc/a.rules, /etc/b.rules])",
            "route(routes=kernel)",
            "route(routes=/etc/routes)",
        ];
        let functions = texts.map(|text| text.parse::<Stage>().unwrap());
        let read = [
            "/keys/a.hex",
            "/lib/mine.so",
            "/etc/a.rules",
            "/etc/b.rules",
            "/etc/routes",
        ]
        .map(Path::new);
        assert_eq!(files(&functions), read);
        assert_eq!(variables(&functions), ["SECRET"]);
    }
}
