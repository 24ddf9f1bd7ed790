//! Go templates, the part that people write on a command line: fields, pipelines, variables, `if`, `with`, `range`, `define`,
//! `template`, and the built-in functions.
//!
//! A template runs for a bounded number of steps and makes a bounded text, so that one from elsewhere cannot hang its reader.

mod exec;
mod functions;
mod parse;

use std::collections::HashMap;

use serde_json::Value;
use thiserror::Error;

use parse::Node;

/// What is wrong with a template, or went wrong in it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TemplateError {
    #[error("template: output:{line}: {reason}")]
    Parse { line: usize, reason: String },
    #[error("template: output:{line}:{column}: executing \"output\" at <{action}>: {reason}")]
    Run { line: usize, column: usize, action: String, reason: String },
    #[error("template: output: {0}")]
    Limit(&'static str),
}

/// A template, read.
pub struct Template {
    body: Vec<Node>,
    defined: HashMap<String, Vec<Node>>,
    /// A field that is not there is an error.
    pub strict: bool,
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let (body, defined) = parse::parse(text)?;
        Ok(Self { body, defined, strict: false })
    }

    pub fn render(&self, data: &Value) -> Result<String, TemplateError> {
        exec::run(self, data)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(template: &str) -> String {
        let data = json!({"kind": "List", "n": 3, "big": 1234567, "f": 1.5, "t": true, "e": [], "data": {"k": "aGk=", "a-b": "c"},
            "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}, "x": null}]});
        Template::parse(template)
            .and_then(|template| template.render(&data))
            .unwrap_or_else(|error| format!("error: {error}"))
    }

    #[test]
    fn templates_do_what_gos_do() {
        for (template, wanted) in [
            ("{{.kind}}", "List"),
            ("{{.n}} {{.big}} {{.f}}", "3 1.234567e+06 1.5"),
            ("{{.missing}}", "<no value>"),
            ("{{range .items}}{{.metadata.name}},{{end}}", "a,b,"),
            ("{{range $i, $x := .items}}{{$i}}={{$x.metadata.name}} {{end}}", "0=a 1=b "),
            ("{{range $k, $v := .data}}{{$k}}:{{$v}};{{end}}", "a-b:c;k:aGk=;"),
            ("{{range .e}}x{{else}}none{{end}}", "none"),
            ("{{if .t}}yes{{else}}no{{end}}", "yes"),
            ("{{if not .t}}a{{else if eq .kind \"List\"}}b{{else}}c{{end}}", "b"),
            ("{{with .data}}{{.k | base64decode}}{{end}}", "hi"),
            ("{{index .data \"a-b\"}}", "c"),
            ("{{(index .items 1).metadata.name}}", "b"),
            ("{{len .items}}", "2"),
            ("{{printf \"%s-%v-%q\" .kind .n .kind}}", "List-3-\"List\""),
            ("{{printf \"%5s|%-5s|%05d\" \"a\" \"b\" 42}}", "    a|b    |00042"),
            ("a {{- \" b \" -}} c", "a b c"),
            ("{{/* nothing */}}x", "x"),
            ("{{$a := .kind}}{{$a}}", "List"),
            ("{{$s := \"\"}}{{range .items}}{{$s = .metadata.name}}{{end}}{{$s}}", "b"),
            ("{{define \"T\"}}<{{.}}>{{end}}{{template \"T\" .kind}}", "<List>"),
            ("{{and .t .kind}} {{or .missing \"z\"}}", "List z"),
            ("{{eq .kind \"a\" \"List\"}} {{ne 1 2}} {{lt 1 2}} {{ge \"b\" \"a\"}}", "true true true true"),
            ("{{range .items}}{{if eq .metadata.name \"b\"}}{{break}}{{end}}{{.metadata.name}}{{end}}", "a"),
            ("{{.data}}", "map[a-b:c k:aGk=]"),
            ("{{html \"<a>\"}} {{js \"'\"}} {{urlquery \"a b\"}}", "&lt;a&gt; \\' a+b"),
            ("{{\"\\n\" | printf \"%q\"}}", "\"\\n\""),
            ("{{`raw`}} {{'a'}} {{true}} {{1.5}}", "raw 97 true 1.5"),
            ("{{slice .kind 1 3}}", "is"),
            ("{{print 1 2 \"a\" \"b\" 3}}", "1 2ab3"),
            ("{{range 3}}x{{end}}", "xxx"),
        ] {
            assert_eq!(render(template), wanted, "{template}");
        }
        for template in [
            "{{",
            "{{.a",
            "{{if}}",
            "{{range .x}}",
            "{{end}}",
            "{{nofunc 1}}",
            "{{.kind.x}}",
            "{{index .items 9}}",
            "{{$x}}",
            "{{eq .n 3}}",
        ] {
            assert!(render(template).starts_with("error: "), "{template}: {}", render(template));
        }
    }

    #[test]
    fn a_template_that_calls_itself_ends() {
        assert!(render("{{define \"T\"}}{{template \"T\"}}{{end}}{{template \"T\"}}").starts_with("error: "));
        assert!(render("{{range 1000000}}{{range 1000000}}x{{end}}{{end}}").starts_with("error: "));
    }
}
