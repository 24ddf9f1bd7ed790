//! Checks that are not a compiler's: `cargo xtask layers`; and the tests with an account of what was not tested: `cargo xtask test`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

const MAP: &str = "docs/architecture.md";
const BEGIN: &str = "<!-- layers: written by `cargo xtask layers --write` -->\n";
const END: &str = "<!-- end of layers -->";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["layers"] => layers(false),
        ["layers", "--write"] => layers(true),
        ["test", ref more @ ..] => test(more),
        _ => bail!("usage: cargo xtask layers [--write] | test [ARGUMENTS OF cargo test]"),
    }
}

/// Runs all tests and ends with a list of what was skipped, which each of them notes in one file (crate `testing`).
fn test(more: &[&str]) -> anyhow::Result<()> {
    let note = std::env::temp_dir().join(format!("kelson-skipped-{}", std::process::id()));
    let status = Command::new(env!("CARGO"))
        .args(["test", "--workspace"])
        .args(more)
        .env("KELSON_SKIPPED", &note)
        .status()
        .context("cannot run cargo")?;
    // Nobody writes it where nothing is skipped.
    let skipped = fs::read_to_string(&note).unwrap_or_default();
    if !skipped.is_empty() {
        let lines: std::collections::BTreeSet<&str> = skipped.lines().collect();
        println!("{} tests were skipped, in whole or in part:", lines.len());
        lines.iter().for_each(|line| println!("  {line}"));
        fs::remove_file(&note).with_context(|| format!("cannot remove {}", note.display()))?;
    } else if status.success() {
        println!("no test was skipped");
    }
    ensure!(status.success(), "the tests failed");
    Ok(())
}

struct Crate {
    layer: u64,
    about: String,
    uses: Vec<String>,
}

/// Every crate imports only from layers below its own, and the map in the docs shows what is.
fn layers(write: bool) -> anyhow::Result<()> {
    let crates = workspace()?;
    let mut broken = Vec::new();
    for (name, this) in &crates {
        for used in &this.uses {
            let theirs = crates[used].layer;
            if theirs >= this.layer {
                broken.push(format!("{name} (layer {}) imports {used} (layer {theirs})", this.layer));
            }
        }
    }
    ensure!(broken.is_empty(), "edges that do not point downwards:\n  {}", broken.join("\n  "));
    let text = fs::read_to_string(MAP).with_context(|| format!("cannot read {MAP}"))?;
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("{MAP} has no line {BEGIN:?}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{MAP} has no line {END:?}"))?;
    let drawn = format!("{before}{BEGIN}{}{END}{after}", draw(&crates));
    if write {
        fs::write(MAP, drawn)?;
    } else {
        ensure!(
            drawn == text,
            "{MAP} does not show the crates as they are; run `cargo xtask layers --write`"
        );
    }
    println!("{} crates, all edges point downwards", crates.len());
    Ok(())
}

fn workspace() -> anyhow::Result<BTreeMap<String, Crate>> {
    let output =
        Command::new(env!("CARGO")).args(["metadata", "--format-version=1", "--no-deps"]).output()?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut crates = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        let layer = package["metadata"]["layer"]
            .as_u64()
            .with_context(|| format!("{name} has no [package.metadata] layer"))?;
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        // Tests may look upwards: only what is linked into the product counts.
        let linked = dependencies.filter(|dependency| dependency["kind"].is_null());
        let mut uses: Vec<String> = linked
            .filter_map(|dependency| dependency["name"].as_str())
            .filter(|dependency| names.contains(dependency))
            .map(str::to_owned)
            .collect();
        uses.sort();
        uses.dedup();
        let source = package["targets"][0]["src_path"].as_str().unwrap_or_default();
        crates.insert(name.to_owned(), Crate { layer, about: first_sentence(source), uses });
    }
    Ok(crates)
}

/// The crate's own opening words.
fn first_sentence(source: &str) -> String {
    let text = fs::read_to_string(source).unwrap_or_default();
    let header: Vec<&str> = text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let header = header.join(" ");
    header.split_inclusive(". ").next().unwrap_or("").trim().trim_end_matches('.').to_owned()
}

fn draw(crates: &BTreeMap<String, Crate>) -> String {
    let mut table = String::from("| layer | crate | what it is | imports |\n|---:|---|---|---|\n");
    let mut rows: Vec<(&String, &Crate)> = crates.iter().collect();
    rows.sort_by_key(|(name, this)| (this.layer, name.as_str()));
    for (name, this) in rows {
        let uses = this.uses.join(", ");
        writeln!(table, "| {} | `{name}` | {} | {uses} |", this.layer, this.about)
            .expect("a string takes all");
    }
    table
}
