//! Compiles the C side of DPDK ports if DPDK's headers are installed (cfg `dpdk`).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    dpdk::compile();
}

mod dpdk {
    use std::env;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// The pkg-config package that a build with DPDK ports needs. Without it, DPDK ports report that they are
    /// unavailable.
    const PACKAGE: &str = "libdpdk";

    pub fn compile() {
        println!("cargo:rustc-check-cfg=cfg(dpdk)");
        let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
        if features.split(',').any(|feature| feature == "crt-static") {
            // A static program loads no libraries, so the C side cannot be loaded either.
            return;
        }
        if env::var_os("TARGET") != env::var_os("HOST") {
            // The compiler and pkg-config belong to the building machine, so they cannot build the C side for another
            // target.
            return;
        }
        watch_packages();
        let (Some(include), Some(link)) = (
            pkg_config(&["--cflags", PACKAGE]),
            pkg_config(&["--libs", PACKAGE]),
        ) else {
            return;
        };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dpdk/shim.c");
        println!("cargo:rerun-if-changed={}", source.display());
        let mut command = compiler(&source, include, link);
        match command.output() {
            Ok(output) if output.status.success() => {
                println!("cargo:rustc-cfg=dpdk");
                let version = pkg_config(&["--modversion", PACKAGE]).unwrap_or_default();
                println!("cargo:rustc-env=TAUT_DPDK_VERSION={}", version.concat());
            }
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stderr);
                println!(
                    "cargo:warning=building without DPDK ports, as their C side does not compile: {}",
                    words
                        .lines()
                        .find(|l| l.contains("error"))
                        .unwrap_or_default()
                );
            }
            Err(error) => {
                println!("cargo:warning=building without DPDK ports: {command:?}: {error}")
            }
        }
    }

    /// Asks Cargo to build again when the compiler or the installed packages may have changed.
    fn watch_packages() {
        for name in ["CC", "PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
            println!("cargo:rerun-if-env-changed={name}");
        }
        // Installing or removing packages changes these folders.
        for folder in pkg_config(&["--variable", "pc_path", "pkg-config"])
            .iter()
            .flat_map(|words| words.iter())
            .flat_map(|path| path.split(':'))
            .filter(|folder| Path::new(folder).is_dir())
        {
            println!("cargo:rerun-if-changed={folder}");
        }
    }

    /// Returns the command that compiles `source`, the C code of DPDK ports, with the given flags of DPDK's headers and
    /// libraries.
    fn compiler(source: &Path, include: Vec<String>, link: Vec<String>) -> Command {
        let library =
            PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("libtaut_dpdk.so");
        let program = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(program);
        command
            .args([
                "-std=gnu11",
                "-O3",
                // This pass merges two stores with instructions that cost more (2 % per packet).
                "-fno-tree-slp-vectorize",
                "-fPIC",
                "-shared",
                "-fvisibility=hidden",
            ])
            .args(["-Wall", "-Wextra", "-o"])
            .arg(library)
            .arg(source)
            .args(include)
            .args(link);
        command
    }

    /// Returns the words that `pkg-config` prints for the given arguments; None if it does not know the package.
    fn pkg_config(arguments: &[&str]) -> Option<Vec<String>> {
        let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
        let output = Command::new(program).args(arguments).output().ok()?;
        let words = String::from_utf8(output.stdout).ok()?;
        output
            .status
            .success()
            .then(|| words.split_whitespace().map(str::to_string).collect())
    }
}
