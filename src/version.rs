//! `taut --version`: the features of this build, and the processor instructions that it uses on this machine.

use taut_cipher::CounterMode;

/// Returns the version, then a line for each difference between builds or machines; `taut -V` prints the version alone.
pub fn long() -> String {
    let dpdk = match taut_port::dpdk::BUILT_WITH {
        Some(version) => {
            format!("built with {version}; taut ports shows whether it can be loaded")
        }
        None => "not built in".to_string(),
    };
    let xdp = if cfg!(feature = "xdp") {
        "built in"
    } else {
        "not built in"
    };
    let linked = if cfg!(target_feature = "crt-static") {
        "statically: needs and loads no library"
    } else {
        "dynamically, with the libraries of this system"
    };
    // Any key will do: only the name of the selected instructions is printed.
    let cipher = CounterMode::new(&[0; 16]);
    format!(
        "{}\ncommit           {}\ndpdk             {dpdk}\nxdp              {xdp}\nlinked           {linked}\n\
         network coding   {}\nencryption       {}\nlongest prefix   {}",
        env!("CARGO_PKG_VERSION"),
        env!("TAUT_COMMIT"),
        taut_code::kernel::name(),
        cipher.as_ref().map_or("none", CounterMode::name),
        taut_lpm::instructions(),
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_line_of_version_output_is_the_version_number() {
        let text = super::long();
        assert_eq!(text.lines().next(), Some(env!("CARGO_PKG_VERSION")));
        assert_eq!(text.lines().count(), 8, "{text}");
    }
}
