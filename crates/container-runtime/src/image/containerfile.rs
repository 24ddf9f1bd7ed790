//! The instructions of a Containerfile that need no container to be carried out. Pure.
//!
//! `FROM COPY ENV ENTRYPOINT CMD USER WORKDIR LABEL`, with line continuations, comments and `$variables` of `ENV`.
//! Everything else is refused by its name: an image that lacks a step is worse than none.

use std::collections::BTreeMap;

use thiserror::Error;

/// A file that cannot be built from.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {reason}")]
pub struct BadFile {
    pub line: usize,
    pub reason: String,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// `None` is `scratch`.
    From(Option<String>),
    Copy {
        sources: Vec<String>,
        target: String,
        owner: Option<(u64, u64)>,
        mode: Option<u32>,
    },
    Env(Vec<(String, String)>),
    Entrypoint(Vec<String>),
    Cmd(Vec<String>),
    User(String),
    WorkDir(String),
    Label(Vec<(String, String)>),
}

/// Reads a file. `variables` are those of the base image.
pub fn parse(text: &str, mut variables: BTreeMap<String, String>) -> Result<Vec<Step>, BadFile> {
    let mut steps = Vec::new();
    for (line, text) in logical_lines(text) {
        let bad = |reason: String| BadFile { line, reason };
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((&text, ""));
        let rest = rest.trim();
        let name = name.to_ascii_uppercase();
        if steps.is_empty() != (name == "FROM") {
            return Err(bad(match name.as_str() {
                "FROM" => "a second FROM: only one stage is supported".into(),
                _ => format!("{name} before FROM"),
            }));
        }
        if rest.is_empty() {
            return Err(bad(format!("{name} without an argument")));
        }
        let step = match name.as_str() {
            "FROM" => from(rest),
            "COPY" => copy(rest, &variables),
            "ENV" => pairs(rest, &variables).map(|pairs| {
                variables.extend(pairs.iter().cloned());
                Step::Env(pairs)
            }),
            "LABEL" => pairs(rest, &variables).map(Step::Label),
            "ENTRYPOINT" => command(rest).map(Step::Entrypoint),
            "CMD" => command(rest).map(Step::Cmd),
            "USER" => expand(rest, &variables).map(Step::User),
            "WORKDIR" => expand(rest, &variables).map(Step::WorkDir),
            other => Err(format!(
                "{other} is not supported: FROM, COPY, ENV, ENTRYPOINT, CMD, USER, WORKDIR and LABEL are"
            )),
        };
        steps.push(step.map_err(bad)?);
    }
    match steps.is_empty() {
        true => Err(BadFile { line: 1, reason: "no instruction".into() }),
        false => Ok(steps),
    }
}

/// Lines without comments, joined where they end in a backslash; with the number of their first.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with('#') || (trimmed.is_empty() && !open) {
            continue;
        }
        let (content, goes_on) = match trimmed.strip_suffix('\\') {
            Some(content) => (content, true),
            None => (trimmed, false),
        };
        match all.last_mut() {
            Some((_, last)) if open => last.push_str(content),
            _ => all.push((index + 1, content.to_owned())),
        }
        open = goes_on;
    }
    all
}

fn from(rest: &str) -> Result<Step, String> {
    match rest.split_whitespace().collect::<Vec<_>>()[..] {
        ["scratch"] => Ok(Step::From(None)),
        [flag] if flag.starts_with("--") => Err(format!("FROM {flag} is not supported")),
        [image] => Ok(Step::From(Some(image.to_owned()))),
        _ => Err("FROM takes one image; stages (AS) and flags are not supported".into()),
    }
}

fn copy(rest: &str, variables: &BTreeMap<String, String>) -> Result<Step, String> {
    let (mut owner, mut mode) = (None, None);
    let mut rest = rest;
    while let Some(flag) = rest.split_whitespace().next().filter(|word| word.starts_with("--")) {
        match flag.split_once('=') {
            Some(("--chown", value)) => {
                let (uid, gid) = value.split_once(':').unwrap_or((value, value));
                let number =
                    |text: &str| text.parse().map_err(|_| format!("COPY {flag}: only numbers are supported"));
                owner = Some((number(uid)?, number(gid)?));
            }
            Some(("--chmod", value)) => {
                let parsed = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777);
                mode = Some(parsed.ok_or_else(|| format!("COPY {flag}: not an octal mode"))?);
            }
            _ => return Err(format!("COPY {flag} is not supported")),
        }
        rest = rest[flag.len()..].trim_start();
    }
    let mut words = match rest.starts_with('[') {
        true => json_words(rest).ok_or("COPY: not a list of strings")?,
        false => split_words(rest)?,
    };
    for word in &mut words {
        *word = expand(word, variables)?;
    }
    let target = words.pop().filter(|_| !words.is_empty()).ok_or("COPY takes sources and a destination")?;
    if let Some(pattern) = words.iter().find(|word| word.contains(['*', '?', '['])) {
        return Err(format!("COPY: the pattern {pattern:?} is not supported: name the files"));
    }
    Ok(Step::Copy { sources: words, target, owner, mode })
}

/// `["a", "b"]`, or a line for a shell.
fn command(rest: &str) -> Result<Vec<String>, String> {
    if rest.starts_with('[') {
        return json_words(rest).ok_or_else(|| "not a list of strings".into());
    }
    Ok(vec!["/bin/sh".into(), "-c".into(), rest.to_owned()])
}

fn json_words(text: &str) -> Option<Vec<String>> {
    serde_json::from_str(text).ok()
}

/// `key=value key="other value"`, or the old form `key value`.
fn pairs(rest: &str, variables: &BTreeMap<String, String>) -> Result<Vec<(String, String)>, String> {
    let words = split_words(rest)?;
    if !words.first().is_some_and(|word| word.contains('=')) {
        let (key, value) = rest.split_once(char::is_whitespace).ok_or("a name without a value")?;
        return Ok(vec![(key.to_owned(), expand(value.trim(), variables)?)]);
    }
    let pair = |word: &String| {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} has no ="))?;
        match key.is_empty() {
            true => Err(format!("{word:?} has no name")),
            false => Ok((key.to_owned(), expand(value, variables)?)),
        }
    };
    words.iter().map(pair).collect()
}

/// Words apart by blanks, where quotes and backslashes keep together. A `$` in single quotes is kept from expansion.
fn split_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    let mut quote: Option<char> = None;
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', None | Some('"')) => {
                let next = characters.next().ok_or("it ends in a backslash")?;
                let kept = word.get_or_insert_default();
                if next == '$' {
                    kept.push('\\');
                }
                kept.push(next);
            }
            ('"' | '\'', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (character, Some(open)) if character == open => quote = None,
            ('$', Some('\'')) => word.get_or_insert_default().push_str("\\$"),
            (blank, None) if blank.is_whitespace() => words.extend(word.take()),
            (character, _) => word.get_or_insert_default().push(character),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".into());
    }
    words.extend(word);
    Ok(words)
}

/// Puts variables in: `$NAME`, `${NAME}`; `\$` is a dollar.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        if let Some(after) = tail.strip_prefix("\\$") {
            out.push('$');
            rest = after;
            continue;
        }
        if let Some(after) = tail.strip_prefix('\\') {
            out.push('\\');
            rest = after;
            continue;
        }
        let after = &tail[1..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, left) = match after.strip_prefix('{') {
            Some(inner) => {
                let (name, left) = inner.split_once('}').ok_or("a ${ is not closed")?;
                if !name.chars().all(is_name) {
                    return Err(format!("${{{name}}} is not supported: only names are"));
                }
                (name, left)
            }
            None => after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len())),
        };
        if name.is_empty() {
            out.push('$');
        }
        out.push_str(variables.get(name).map_or("", String::as_str));
        rest = left;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_supported_instructions_are_read() {
        let text = r#"
            # comment
            from example.com/base:1
            ENV A=1 B="two words" C='$A' \
                D=${A}x
            ENV OLD some text:$BASE
            COPY --chown=5:6 --chmod=750 a dir/b /to/$A/
            COPY ["with space", "x"]
            WORKDIR /srv
            USER 1000:2000
            LABEL "k e"=v
            ENTRYPOINT ["/app", "-x"]
            CMD echo $A
        "#;
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            parse(text, [("BASE".to_owned(), "/bin".to_owned())].into()).unwrap(),
            [
                Step::From(Some("example.com/base:1".into())),
                // As with others, a variable is seen from the next line on.
                Step::Env(vec![pair("A", "1"), pair("B", "two words"), pair("C", "$A"), pair("D", "x")]),
                Step::Env(vec![pair("OLD", "some text:/bin")]),
                Step::Copy {
                    sources: words(&["a", "dir/b"]),
                    target: "/to/1/".into(),
                    owner: Some((5, 6)),
                    mode: Some(0o750)
                },
                Step::Copy { sources: words(&["with space"]), target: "x".into(), owner: None, mode: None },
                Step::WorkDir("/srv".into()),
                Step::User("1000:2000".into()),
                Step::Label(vec![pair("k e", "v")]),
                Step::Entrypoint(words(&["/app", "-x"])),
                Step::Cmd(words(&["/bin/sh", "-c", "echo $A"])),
            ]
        );
    }

    #[test]
    fn the_rest_is_refused_by_name() {
        let cases = [
            ("FROM a\nRUN make", "line 2: RUN is not supported"),
            ("FROM a\n\nADD x y", "line 3: ADD is not supported"),
            ("FROM a AS b", "stages"),
            ("FROM a\nFROM b", "second FROM"),
            ("COPY a b", "COPY before FROM"),
            ("FROM a\nCOPY --from=b x y", "--from=b is not supported"),
            ("FROM a\nCOPY x", "sources and a destination"),
            ("FROM a\nCOPY *.c /", "pattern"),
            ("FROM a\nENV X=\"", "quote"),
            ("FROM a\nENV X=${Y:-z}", "not supported"),
            ("FROM a\nCMD [1]", "list of strings"),
            ("FROM a\nUSER", "without an argument"),
            ("", "no instruction"),
        ];
        for (text, word) in cases {
            let error = parse(text, BTreeMap::new()).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
