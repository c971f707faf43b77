//! Control sockets of this user's running functions: creates links to them in the user's run folder, and finds the
//! socket of a function.

use crate::exit::Failure;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use taut_engine::Stage;
use taut_host::private;

/// Names of the functions whose control sockets commands find without a path.
const FOUND: [&str; 3] = ["gtpu", "ips", "route"];

/// Links to the control sockets of a forwarder's functions, removed when this value is dropped.
pub struct Links(Vec<PathBuf>);

impl Links {
    /// Links the control sockets that the settings of the given functions name. Without a link, commands need
    /// `--control`.
    pub fn of<'a>(functions: impl Iterator<Item = &'a Stage>) -> Self {
        let sockets: Vec<_> = functions.filter_map(control_of).collect();
        if sockets.is_empty() {
            return Self(Vec::new());
        }
        match private::run_folder() {
            Ok(folder) => Self::in_folder(&folder, &sockets),
            Err(_) => Self(Vec::new()),
        }
    }

    fn in_folder(folder: &Path, sockets: &[(&str, PathBuf)]) -> Self {
        remove_stale(folder);
        let own = private::name_of_this_process();
        let links = sockets.iter().enumerate().filter_map(|(number, it)| {
            let link = folder.join(format!("{}-{own}{number}.sock", it.0));
            // An earlier process with the same number may have left a link of this name.
            let _ = std::fs::remove_file(&link);
            symlink(&it.1, &link).is_ok().then_some(link)
        });
        Self(links.collect())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for link in &self.0 {
            // A link that another process has removed is no error.
            let _ = std::fs::remove_file(link);
        }
    }
}

/// Returns the name of a function that commands find, and the absolute path of its control socket.
fn control_of(function: &Stage) -> Option<(&str, PathBuf)> {
    let name = function.name.as_str();
    let path = function.settings.get("control")?.as_str()?;
    let path = std::path::absolute(path).ok()?;
    FOUND.contains(&name).then_some((name, path))
}

/// Removes the links of processes that were killed.
fn remove_stale(folder: &Path) {
    for function in FOUND {
        for (rest, path) in entries(folder, function) {
            if private::is_left_behind(&rest) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Returns the control socket `given`, or else the socket of this user's only running function called `function`.
/// `what` is the kind of the function and `start` the way to start one, for messages.
pub fn meant(
    given: Option<&Path>,
    function: &str,
    what: &str,
    start: &str,
) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        return Ok(given.to_path_buf());
    }
    let folder = private::run_folder_path();
    only(running(&folder, function), what, start)
}

/// Returns the only socket in `running`; an error if there is none or more than one.
fn only(mut running: Vec<PathBuf>, what: &str, start: &str) -> Result<PathBuf, Failure> {
    match (running.pop(), &running[..]) {
        (Some(one), []) => Ok(one),
        (None, _) => Err(Failure::Missing(format!(
            "this user runs no {what}: {start}, or name one by --control"
        ))),
        (Some(last), others) => {
            let all = others.iter().chain([&last]);
            let names: Vec<_> = all.map(|it| it.display().to_string()).collect();
            Err(Failure::Input(format!(
                "{} {what}s run: name one by --control: {}",
                names.len(),
                names.join(", ")
            )))
        }
    }
}

/// Returns the sockets of the function called `function` in a folder of this user, sorted by path. Only sockets at
/// which a process listens are returned.
fn running(folder: &Path, function: &str) -> Vec<PathBuf> {
    if private::check(folder).is_err() {
        return Vec::new();
    }
    let sockets = entries(folder, function)
        .into_iter()
        .filter(|(rest, _)| !private::is_left_behind(rest))
        .filter_map(|(_, path)| path.canonicalize().ok());
    let mut running: Vec<_> = sockets
        .filter(|it| UnixStream::connect(it).is_ok())
        .collect();
    running.sort();
    running.dedup();
    running
}

/// Returns the sockets and links of a function in a folder: for each, the file name without the prefix `FUNCTION-`, and
/// the path.
fn entries(folder: &Path, function: &str) -> Vec<(String, PathBuf)> {
    let prefix = format!("{function}-");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_function = entries.filter_map(|it| {
        let name = it.file_name().into_string().ok()?;
        let rest = name.strip_prefix(&prefix)?;
        rest.ends_with(".sock")
            .then(|| (rest.to_string(), it.path()))
    });
    of_function.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixListener;

    fn wrong(running: Vec<PathBuf>) -> String {
        let wrong = only(running, "router", "start one");
        wrong.unwrap_err().into_text()
    }

    #[test]
    fn the_only_listening_control_socket_is_found_by_symbolic_link() {
        let folder = private::scratch().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let (here, gone) = (at("here"), at("gone"));
        let listener = UnixListener::bind(&here).unwrap();
        let sockets = [
            ("route", here.clone()),
            ("route", here.clone()),
            ("route", gone),
            ("ips", here.clone()),
        ];
        let links = Links::in_folder(folder.path(), &sockets);
        assert_eq!(links.0.len(), 4);
        assert_eq!(running(folder.path(), "route"), std::slice::from_ref(&here));
        assert_eq!(running(folder.path(), "gtpu"), Vec::<PathBuf>::new());
        drop(listener);
        assert_eq!(running(folder.path(), "route"), Vec::<PathBuf>::new());
        drop(links);
        assert!(entries(folder.path(), "route").is_empty());
    }

    #[test]
    fn links_of_killed_processes_are_ignored_and_removed() {
        let folder = private::scratch().unwrap();
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let own = private::name_of_this_process();
        let (prefix, _) = own.split_once('.').unwrap();
        let link = format!("route-{prefix}.4294967295-0.sock");
        symlink(&socket, folder.path().join(link)).unwrap();
        assert_eq!(running(folder.path(), "route"), Vec::<PathBuf>::new());
        remove_stale(folder.path());
        assert!(entries(folder.path(), "route").is_empty());
    }

    #[test]
    fn missing_and_ambiguous_sockets_are_errors_that_name_the_option() {
        let one = only(vec!["/a".into()], "router", "start one");
        assert_eq!(one.unwrap(), Path::new("/a"));
        assert_eq!(
            wrong(Vec::new()),
            "this user runs no router: start one, or name one by --control"
        );
        assert_eq!(
            wrong(vec!["/a".into(), "/b".into()]),
            "2 routers run: name one by --control: /a, /b"
        );
    }

    #[test]
    fn only_functions_with_a_control_socket_are_linked() {
        let control = |text: &str| {
            let stage = Stage::parse(text, taut_functions::FUNCTIONS).unwrap();
            control_of(&stage).map(|(name, path)| (name.to_string(), path))
        };
        let want = ("ips".to_string(), PathBuf::from("/run/ips.sock"));
        assert_eq!(control("ips(control=\"/run/ips.sock\")"), Some(want));
        assert_eq!(control("ips"), None);
        assert_eq!(control("forward"), None);
    }
}
