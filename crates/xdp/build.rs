//! Compiles the programs that AF_XDP ports, in-kernel forwarding and wiretaps load (feature `xdp`).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "xdp")]
    xdp::compile();
}

#[cfg(feature = "xdp")]
mod xdp {
    use std::env;
    use std::path::{Path, PathBuf};
    use std::process::{Command, exit};

    /// The names of the programs: `NAME.bpf.c` is compiled to the object file `NAME.bpf.o`.
    const PROGRAMS: [&str; 8] = [
        "xdp_to_socket",
        "xdp_forward",
        "xdp_functions",
        "xdp_gateway",
        "xdp_refused",
        "xdp_router",
        "xdp_switch",
        "wire_tap",
    ];

    pub fn compile() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ebpf");
        println!("cargo:rerun-if-changed={}", folder.display());
        println!("cargo:rerun-if-env-changed=CLANG");
        let path = |name: &str| PathBuf::from(env::var_os(name).unwrap_or_default());
        let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
        for program in PROGRAMS {
            let source = folder.join(format!("{program}.bpf.c"));
            let mut command = Command::new(&clang);
            command
                .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-c"])
                // libbpf's own headers, from the copy that libbpf-sys builds.
                .arg("-I")
                .arg(path("DEP_BPF_INCLUDE"))
                .arg(&source)
                .arg("-o")
                .arg(path("OUT_DIR").join(format!("{program}.bpf.o")));
            let problem = match command.status() {
                Ok(status) if status.success() => continue,
                Ok(status) => format!("ended with {status}"),
                Err(error) => error.to_string(),
            };
            eprintln!(
                "compiling {} with {}: {problem}.\nAF_XDP ports need clang (Debian: apt install clang), or \
                 build without them: --no-default-features",
                source.display(),
                clang.display(),
            );
            exit(1);
        }
    }
}
