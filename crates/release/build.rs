//! Puts the components' manifests into the crate: a list of (component, file name, bytes), in order.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let home = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let root = home.join("../operators/manifests");
    println!("cargo:rerun-if-changed={}", root.display());
    println!("cargo:rerun-if-changed=build.rs");
    let mut list = String::from("&[\n");
    for component in sorted(&root) {
        println!("cargo:rerun-if-changed={}", component.display());
        for file in sorted(&component) {
            println!("cargo:rerun-if-changed={}", file.display());
            let (component, name) = (last(&component), last(&file));
            writeln!(
                list,
                "    ({component:?}, {name:?}, include_bytes!({:?})),",
                file.display().to_string()
            )
            .expect("a String takes everything");
        }
    }
    list.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    fs::write(out.join("manifests.rs"), list).expect("the output directory can be written");
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("can be listed").path()).collect();
    paths.sort();
    paths
}

fn last(path: &Path) -> String {
    path.file_name().and_then(|name| name.to_str()).expect("names are plain text").to_owned()
}
