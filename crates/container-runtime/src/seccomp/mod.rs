//! Filters of system calls: the default profile, profiles from files, and how they become programs for the kernel.
//!
//! The assembler is our own (decision 10): profiles have any number of answers, and the crates at hand have two.

mod calls;
mod default;
pub mod oci;
pub mod program;

pub use default::profile as default_profile;

use serde::{Deserialize, Serialize};

/// A program as it travels to the shim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// `SECCOMP_FILTER_FLAG_*`.
    pub flags: u32,
    /// Instructions: code, both leaps, constant.
    pub program: Vec<(u16, u8, u8, u32)>,
}

impl Filter {
    /// The filter of a profile.
    pub fn of(profile: &program::Profile) -> Result<Self, program::TooLarge> {
        let program = profile.assemble()?;
        let program = program.iter().map(|step| (step.code, step.jt, step.jf, step.k)).collect();
        Ok(Self { flags: profile.flags, program })
    }

    /// Installs it on this process.
    pub fn install(&self) -> std::io::Result<()> {
        let step = |(code, jt, jf, k): &(u16, u8, u8, u32)| libc::sock_filter {
            code: *code,
            jt: *jt,
            jf: *jf,
            k: *k,
        };
        crate::sys::install_seccomp(&self.program.iter().map(step).collect::<Vec<_>>(), self.flags)
    }
}
