//! Files and variables that functions read: keys, lists of bearers. These must be copied when a function runs in a
//! virtual machine or on another host.

use std::path::PathBuf;
use taut_engine::Stage;

/// Returns the text values of the functions' settings whose keys `fits` accepts.
fn settings<'a>(
    functions: &'a [Stage],
    fits: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = &'a str> {
    let all = functions.iter().flat_map(|stage| stage.settings.iter());
    all.filter(move |(key, _)| fits(key))
        .filter_map(|(_, value)| value.as_str())
}

/// Returns the paths of the files that the given functions read. A setting called `file` is included only if the
/// function's catalog entry lists it, as such a setting may also name a file to write.
pub(crate) fn files(functions: &[Stage]) -> Vec<PathBuf> {
    let paths = settings(functions, |key| key.ends_with("_file") || key == "load");
    let by_function = functions.iter().flat_map(|stage| {
        let entry = stage.catalog.entry(&stage.name).ok();
        entry.map_or(Vec::new(), |entry| (entry.files)(&stage.settings))
    });
    paths.chain(by_function).map(PathBuf::from).collect()
}

/// Returns the names of the environment variables that the given functions read.
pub(crate) fn variables(functions: &[Stage]) -> Vec<String> {
    let names = settings(functions, |key| key.ends_with("_env"));
    names.map(str::to_owned).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;
    use taut_functions::FUNCTIONS;

    #[test]
    fn files_and_environment_variables_in_function_settings_are_found() {
        let texts = [
            "aes(key_file=/keys/a.hex, mode=gcm)",
            "aes(key_env=SECRET)",
            "plugin(file=/lib/mine.so)",
            "record(file=/tmp/out.pcapng)",
            "ips(rules=[/etc/a.rules, /etc/b.rules])",
            "route(routes=kernel)",
            "route(routes=/etc/routes)",
        ];
        let functions = texts.map(|text| Stage::parse(text, FUNCTIONS).unwrap());
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
