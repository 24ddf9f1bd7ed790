//! The binary: parse, build, run, drain, and nothing else.

fn main() {
    println!("kelson {}", env!("CARGO_PKG_VERSION"));
}
