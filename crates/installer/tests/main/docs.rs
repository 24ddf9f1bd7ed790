//! Pages that are made from tables must not drift from them.

use installer::pki_report::table_text;
use pki::table::{BUNDLES, INSTALL, KEYS, LOCAL};

fn page() -> String {
    let mut out = String::from(
        "# Keys and certificates\n\n\
         Made from the tables in `crates/pki`; `UPDATE_DOCS=1 cargo test -p installer docs` writes it anew. Texts in braces are\n\
         filled in per cluster. Rotation: *Resign* gives the same key a new certificate, *Renew* makes both anew (at four fifths of\n\
         the lifetime), *Operator* leaves it to an operator in the cluster, *Never* means a new installation.\n\n\
         ## `kelson up`\n\n",
    );
    out.push_str(&table_text(LOCAL));
    out.push_str("\n## `kelson create`\n\n");
    out.push_str(&table_text(INSTALL));
    out.push_str("\n### Bundles\n\n| name | members | purpose |\n|---|---|---|\n");
    for bundle in BUNDLES {
        out.push_str(&format!("| {} | {} | {} |\n", bundle.name, bundle.members.join(", "), bundle.purpose));
    }
    out.push_str("\n### Keys without certificate\n\n| name | purpose |\n|---|---|\n");
    for (name, purpose) in KEYS {
        out.push_str(&format!("| {name} | {purpose} |\n"));
    }
    out
}

#[test]
fn the_page_of_certificates_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/certificates.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        page(),
        "run UPDATE_DOCS=1 cargo test -p installer docs"
    );
}
