//! CEL, the expression language of policies, CRD rules and device selectors: parse, check, run.
//!
//! The path: [`Env`] declares variables; [`Env::compile`] goes `lexer` → `parser` (macros become nodes) → `check`
//! (names become indices, types are judged) → `constant` (what is known is made once) and gives a [`Program`]; [`Program::run`]
//! walks it over JSON where it lies. Everything is pure: no I/O, no clock, and every run has a [`Budget`] of cost, which is
//! upstream's, and of room, which bounds what that cost does not: an expression can neither hang nor flood.
//! Why this is our own: docs/decisions/0007-cel.md.
#![warn(missing_docs)]

pub mod ast;
mod check;
pub mod constant;
pub mod device;
mod env;
mod error;
pub mod estimate;
mod eval;
pub mod functions;
mod issue;
mod lexer;
mod parser;
pub mod schema;
pub mod types;
pub mod value;

pub use env::{Env, Program};
pub use error::Error;
pub use eval::{Activation, Budget, CALL_LIMIT, TOTAL_LIMIT};
pub use issue::{Issue, Issues};
pub use parser::is_identifier;
pub use types::Type;
pub use value::{Authorizer, Check, Val};

#[cfg(test)]
mod tests;
