//! The kernel of virtual machines, with the modules that they need. It is the installed kernel of this host, or
//! Debian's kernel for clouds, which is downloaded as a package and unpacked into a cache, not installed.

use crate::DeployError;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use taut_host::Missing;

/// Debian's package of the newest small kernel for virtual machines.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Debian's package of the newest kernel with the drivers of all hardware.
const WHOLE_PACKAGE: &str = "linux-image-amd64";
/// Modules of a virtual machine's devices: a NIC, a serial line of each kind, packet sockets.
pub(super) const WANTED: [&str; 4] = ["virtio_pci", "virtio_net", "virtio_console", "af_packet"];

/// A kernel and the folder of its modules.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Version, in the format of `uname -r`.
    pub version: String,
    /// The bootable kernel image.
    pub file: PathBuf,
    /// Folder of the kernel's modules.
    folder: PathBuf,
}

/// A module, ready to be loaded.
#[derive(Debug)]
pub struct Module {
    /// Name of the kernel module, with `_` in place of `-`.
    pub name: String,
    /// Content of the kernel module in the format that the kernel loads.
    pub content: Vec<u8>,
}

impl Kernel {
    #[cfg(test)]
    pub(super) fn of(file: &Path) -> Self {
        Self {
            version: "0".to_string(),
            file: file.to_owned(),
            folder: file.with_file_name("modules"),
        }
    }

    /// Finds a kernel: one from the cache, otherwise the newest installed kernel, otherwise Debian's, which is
    /// downloaded.
    ///
    /// # Errors
    /// No kernel exists here, and a requirement for downloading one is missing.
    pub fn find() -> Result<Self, DeployError> {
        Self::find_with(&WANTED)
    }

    /// Finds a kernel that has these modules: one from the cache, otherwise the newest installed kernel, otherwise
    /// Debian's small kernel or its kernel for all hardware, which is downloaded.
    ///
    /// # Errors
    /// No kernel has the modules, or a requirement for downloading one is missing.
    pub fn find_with(wanted: &[&str]) -> Result<Self, DeployError> {
        let cache = taut_host::private::cache_folder_path().join("kernel");
        let has_modules = |kernel: &Self| kernel.modules(wanted).is_ok();
        let unpacked = Self::newest_in(&cache, |folder| folder.join("modules"), has_modules);
        if let Some(kernel) = unpacked.or_else(|| Self::installed().filter(has_modules)) {
            return Ok(kernel);
        }
        // The small kernel is not downloaded a second time.
        if Self::newest_in(&cache, |folder| folder.join("modules"), |_| true).is_none() {
            let kernel = Self::fetch(&cache, PACKAGE)?;
            if has_modules(&kernel) {
                return Ok(kernel);
            }
        }
        let kernel = Self::fetch(&cache, WHOLE_PACKAGE)?;
        kernel.modules(wanted)?;
        Ok(kernel)
    }

    /// Returns the kernel with the given image. Its modules are in `modules`; if None, in a folder `modules` beside the
    /// image, in `lib/modules/VERSION` beside the image's folder, or in the installed folder of that version.
    ///
    /// # Errors
    /// The image cannot be read or has another SHA-256 than `sha256`, or there are no modules.
    pub fn of_file(
        file: &Path,
        sha256: Option<&str>,
        modules: Option<&Path>,
    ) -> Result<Self, DeployError> {
        let shown = file.display();
        let wrong = |text: String| DeployError::Chain(format!("machine: kernel {shown}: {text}"));
        let image = fs::read(file).map_err(|e| wrong(e.to_string()))?;
        if let Some(wanted) = sha256 {
            let digest = Sha256::digest(&image);
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            if !digest.eq_ignore_ascii_case(wanted) {
                return Err(wrong(format!(
                    "its SHA-256 is {digest}, but kernel_sha256 is {wanted}"
                )));
            }
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let version = name.strip_prefix("vmlinuz-").unwrap_or(&name).to_string();
        let beside = file.parent().unwrap_or(Path::new(""));
        let of_version = |root: PathBuf| root.join("lib/modules").join(&version);
        let places = match modules {
            Some(folder) => vec![folder.to_owned()],
            None => vec![
                beside.join("modules"),
                of_version(beside.join("..")),
                of_version(beside.join("../usr")),
                of_version("/".into()),
            ],
        };
        let Some(folder) = places.iter().find(|folder| folder.is_dir()) else {
            let places: Vec<_> = places.iter().map(|it| it.display().to_string()).collect();
            return Err(wrong(format!(
                "no modules in {}: modules = \"FOLDER\" names them",
                places.join(", ")
            )));
        };
        Ok(Self {
            folder: folder.clone(),
            version,
            file: file.to_owned(),
        })
    }

    /// Returns the newest accepted one of the kernel folders in `cache`, each named after its kernel's version. The
    /// small kernel wins over an equally new one.
    fn newest_in(
        cache: &Path,
        modules: impl Fn(&Path) -> PathBuf,
        accept: impl Fn(&Self) -> bool,
    ) -> Option<Self> {
        let entries = fs::read_dir(cache).ok()?.flatten();
        let kernels = entries.filter_map(|entry| {
            let folder = entry.path();
            let version = entry.file_name().into_string().ok()?;
            let file = folder.join("vmlinuz");
            file.is_file().then(|| Self {
                folder: modules(&folder),
                version,
                file,
            })
        });
        kernels.filter(accept).max_by_key(|kernel| {
            (
                version_key(&kernel.version),
                kernel.version.contains("cloud"),
            )
        })
    }

    fn installed() -> Option<Self> {
        let entries = fs::read_dir("/boot").ok()?.flatten();
        let kernels = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix("vmlinuz-")?.to_string();
            Some(Self {
                folder: Path::new("/lib/modules").join(&version),
                version,
                file: entry.path(),
            })
        });
        kernels.max_by_key(|kernel| version_key(&kernel.version))
    }

    /// Downloads Debian's package and extracts the required files.
    fn fetch(cache: &Path, package: &str) -> Result<Self, DeployError> {
        let package = current_package(package)?;
        let system = |what: &str| {
            let what = format!("{what} {}", cache.display());
            move |e: std::io::Error| DeployError::system(what, e)
        };
        fs::create_dir_all(cache).map_err(|e| {
            let what = format!(
                "cannot make {} (XDG_CACHE_HOME selects another folder)",
                cache.display()
            );
            DeployError::system(what, e)
        })?;
        let scratch = tempfile::Builder::new()
            .prefix(".unpacking-")
            .tempdir_in(cache)
            .map_err(system("cannot write into"))?;
        let root = unpack_package(&package, scratch.path())?;
        let image = first_file(&root.join("boot"), |name| name.starts_with("vmlinuz-"));
        let Some((image, version)) = image.and_then(|image| {
            let name = image.file_name()?.to_str()?;
            let version = name.strip_prefix("vmlinuz-")?.to_string();
            Some((image, version))
        }) else {
            return Err(missing(&format!("{package} has none")).into());
        };
        // The folder gets its final name only when its content is complete.
        let ready = scratch.path().join("ready");
        let modules = ["lib/modules", "usr/lib/modules"]
            .map(|folder| root.join(folder).join(&version))
            .into_iter()
            .find(|folder| folder.is_dir());
        let Some(modules) = modules else {
            return Err(missing(&format!("{package} has no modules")).into());
        };
        let moved = fs::create_dir(&ready)
            .and_then(|()| fs::rename(&image, ready.join("vmlinuz")))
            .and_then(|()| fs::rename(&modules, ready.join("modules")));
        moved.map_err(system("cannot write into"))?;
        let folder = cache.join(&version);
        if let Err(error) = fs::rename(&ready, &folder)
            // Another process may have created the same folder in the meantime.
            && !folder.join("vmlinuz").is_file()
        {
            return Err(system("cannot write into")(error));
        }
        Ok(Self {
            file: folder.join("vmlinuz"),
            folder: folder.join("modules"),
            version,
        })
    }

    /// Returns modules and their dependencies, in load order. Built-in modules are omitted.
    ///
    /// # Errors
    /// A module does not exist, or cannot be read.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<Module>, DeployError> {
        let mut files = BTreeMap::new();
        collect(&self.folder, &mut files);
        let builtin = fs::read_to_string(self.folder.join("modules.builtin")).unwrap_or_default();
        let builtin: Vec<String> = builtin
            .lines()
            .map(|line| module_name(line.as_ref()))
            .collect();
        let mut loaded = Vec::new();
        for name in wanted {
            self.add(name, &files, &builtin, &mut loaded)?;
        }
        Ok(loaded)
    }

    fn add(
        &self,
        name: &str,
        files: &BTreeMap<String, PathBuf>,
        builtin: &[String],
        loaded: &mut Vec<Module>,
    ) -> Result<(), DeployError> {
        if builtin.iter().any(|known| known == name) || loaded.iter().any(|m| m.name == name) {
            return Ok(());
        }
        let Some(file) = files.get(name) else {
            return Err(Missing {
                what: format!("the kernel {} has no module {name}", self.version),
                how_to_get_it: format!("apt-get install {WHOLE_PACKAGE}"),
            }
            .into());
        };
        let content = unpacked(file)
            .map_err(|e| DeployError::system(format!("cannot read {}", file.display()), e))?;
        for dependency in dependencies(&content) {
            self.add(&dependency, files, builtin, loaded)?;
        }
        loaded.push(Module {
            name: name.to_string(),
            content,
        });
        Ok(())
    }
}

/// Returns the error that there is no kernel for virtual machines; `what` is the missing requirement.
fn missing(what: &str) -> Missing {
    Missing {
        what: format!("virtual machines need a kernel: {what}"),
        how_to_get_it: format!("apt-get update && apt-get install {PACKAGE}"),
    }
}

/// Returns the name of the package on which `package` depends at present.
fn current_package(package: &str) -> Result<String, Missing> {
    Command::new("apt-cache")
        .args(["depends", "--important", package])
        .env("LC_ALL", "C")
        .stderr(Stdio::null())
        .output()
        .ok()
        .and_then(|said| dependency(&String::from_utf8_lossy(&said.stdout)))
        .ok_or_else(|| missing(&format!("apt knows no package {package}")))
}

/// Downloads a package into a folder, and returns the folder below it that then contains the package's files.
fn unpack_package(package: &str, folder: &Path) -> Result<PathBuf, Missing> {
    let run = |line: &[&str]| {
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).current_dir(folder);
        let done = command.stdin(Stdio::null()).output();
        done.is_ok_and(|done| done.status.success())
    };
    eprintln!("taut: fetching the machines' kernel: {package}");
    if !run(&["apt-get", "-qq", "download", package]) {
        return Err(missing(&format!("apt-get cannot download {package}")));
    }
    let archive = first_file(folder, |name| name.ends_with(".deb"));
    let unpacked = archive.as_deref().and_then(Path::to_str);
    if !unpacked.is_some_and(|archive| run(&["dpkg-deb", "-x", archive, "unpacked"])) {
        return Err(missing(&format!("dpkg-deb cannot unpack {package}")));
    }
    Ok(folder.join("unpacked"))
}

/// Returns the package name after `Depends:` in the output of `apt-cache depends`.
fn dependency(said: &str) -> Option<String> {
    let mut lines = said.lines().map(str::trim);
    let found = lines.find_map(|line| line.strip_prefix("Depends: linux-image-"));
    found.map(|rest| format!("linux-image-{rest}"))
}

fn first_file(folder: &Path, is_it: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let mut entries = fs::read_dir(folder).ok()?.flatten();
    let found = entries.find(|entry| entry.file_name().to_str().is_some_and(&is_it));
    found.map(|entry| entry.path())
}

/// Returns the numbers in a version as a sort key, by which 6.1.0-52 is newer than 6.1.0-9.
fn version_key(version: &str) -> Vec<u64> {
    let parts = version.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Collects the paths of modules by name, from a folder and its subfolders.
fn collect(folder: &Path, found: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Links are not followed: `build` and `source` lead to other trees.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, found);
        } else if path.to_string_lossy().contains(".ko") {
            found.insert(module_name(&path), path);
        }
    }
}

/// Returns `virtio_net` for `kernel/drivers/net/virtio-net.ko.xz`.
fn module_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.split(".ko").next().unwrap_or_default();
    name.replace('-', "_")
}

/// Returns a module in the format that the kernel loads.
fn unpacked(file: &Path) -> std::io::Result<Vec<u8>> {
    let program = match file.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(file),
    };
    let done = Command::new(program).arg("-dc").arg(file).output()?;
    if done.status.success() {
        Ok(done.stdout)
    } else {
        Err(std::io::Error::other(format!("{program} cannot unpack it")))
    }
}

/// Returns a module's dependencies, from the text of its section `.modinfo`.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let at = module.windows(KEY.len()).position(|part| part == KEY);
    let Some(at) = at else {
        return Vec::new();
    };
    let text = module[at + KEY.len()..].split(|byte| *byte == 0).next();
    let text = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
    let names = text.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn kernel(folder: &Path, modules: &[(&str, &str)], builtin: &str) -> Kernel {
        for (path, depends) in modules {
            let path = folder.join("kernel").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(
                path,
                format!("ELF\0license=GPL\0depends={depends}\0name=x\0"),
            )
            .unwrap();
        }
        fs::write(folder.join("modules.builtin"), builtin).unwrap();
        Kernel {
            version: "6.1.0-9".to_string(),
            file: folder.join("vmlinuz"),
            folder: folder.to_owned(),
        }
    }

    #[test]
    fn kernel_modules_load_after_the_modules_they_depend_on() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(
            folder.path(),
            &[
                ("net/virtio_net.ko", "net_failover,virtio"),
                ("net/core/net_failover.ko", "failover"),
                ("net/failover.ko", ""),
                ("char/virtio_console.ko", "virtio"),
                ("virtio/virtio_pci.ko", "virtio"),
                ("sound/unwanted.ko", ""),
            ],
            "kernel/drivers/virtio/virtio.ko\nkernel/net/packet/af_packet.ko\n",
        );
        let loaded = kernel.modules(&WANTED).unwrap();
        let names: Vec<_> = loaded.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "virtio_pci",
                "failover",
                "net_failover",
                "virtio_net",
                "virtio_console"
            ]
        );
    }

    #[test]
    fn a_named_kernel_image_is_checked_by_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("boot/vmlinuz-6.1-rt");
        let modules = folder.path().join("lib/modules/6.1-rt");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "abc").unwrap();
        let no_modules = Kernel::of_file(&file, None, None).unwrap_err().to_string();
        assert!(no_modules.contains("modules = \"FOLDER\""), "{no_modules}");
        fs::create_dir_all(&modules).unwrap();
        // SHA-256 of "abc": FIPS 180-2, appendix B.1.
        let digest = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
        let kernel = Kernel::of_file(&file, Some(digest), None).unwrap();
        assert_eq!(kernel.version, "6.1-rt");
        let other = Kernel::of_file(&file, Some(&"0".repeat(64)), None);
        let other = other.unwrap_err().to_string();
        assert!(other.contains("its SHA-256 is ba7816bf"), "{other}");
    }

    #[test]
    fn the_error_for_a_missing_kernel_module_names_the_module() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(
            folder.path(),
            &[("virtio/virtio_pci.ko", "virtio_ring")],
            "",
        );
        let message = kernel.modules(&WANTED).unwrap_err().to_string();
        assert!(
            message.contains("6.1.0-9 has no module virtio_ring"),
            "{message}"
        );
    }

    #[test]
    fn the_kernel_package_name_is_parsed_from_apt_output() {
        let said = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-52-cloud-amd64\n";
        assert_eq!(
            dependency(said).as_deref(),
            Some("linux-image-6.1.0-52-cloud-amd64")
        );
        assert_eq!(dependency("N: no such package\n"), None);
    }

    #[test]
    fn kernel_versions_are_compared_by_number() {
        assert!(version_key("6.1.0-52-cloud-amd64") > version_key("6.1.0-9-cloud-amd64"));
        assert!(version_key("6.12.1") > version_key("6.1.300"));
    }
}
