//! The container runtime: images, layers, namespaces, cgroups, and the shim that owns each pod.
//!
//! Reading order: [`runtime`] implements the traits of `cri` and knows every sandbox and container; [`plan`] turns
//! a request and an image into a complete [`spec`]; [`shim`] is the small process per pod that carries it out
//! and outlives us; [`image`] is the store. [`cgroup`], [`caps`], [`user`] and [`seccomp`] are the subjects
//! that both sides share. `docs/guides/container-runtime.md` has the picture and the invariants.

pub mod caps;
mod client;
pub mod demo;
pub mod image;
pub mod pause;
pub mod plan;
mod records;
mod runtime;
pub mod seccomp;
pub mod shim;
pub mod spec;
mod sys;
pub mod user;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

pub use image::cli::ImageArgs;
pub use runtime::{Config, OpenError, Runtime};

/// Runs the process's hidden roles, if it was started in one: a pod's shim, the pause process, the demo image's
/// commands (also under their own names, through links). Call it first thing in `main`, before anything takes
/// memory or starts a thread: a shim lives as long as its pod.
pub fn dispatch(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let args: Vec<OsString> = args.into_iter().collect();
    if let Some(applet) = args.first().and_then(|name| demo::applet(name)) {
        let command = [OsString::from(applet)].into_iter().chain(args.into_iter().skip(1));
        return Some(demo::run(&command.collect::<Vec<_>>()));
    }
    match args.get(1).and_then(|word| word.to_str()) {
        Some("shim") if args.len() == 3 => Some(shim::main(Path::new(&args[2]))),
        Some("pause") => Some(pause::run()),
        Some("demo") => Some(demo::run(&args[2..])),
        _ => None,
    }
}

/// A new id for a sandbox, a container or work in progress: 256 random bits, as containerd's are.
fn new_id() -> String {
    use std::fmt::Write;
    let mut bytes = [0_u8; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    // Short reads do not happen below 256 bytes; a kernel without randomness runs nothing else either.
    assert_eq!(filled, Ok(bytes.len()), "the kernel has no random bytes");
    bytes.iter().fold(String::with_capacity(64), |mut id, byte| {
        let _ = write!(id, "{byte:02x}"); // a String takes everything
        id
    })
}
