//! The text of a unit file: sections, assignments, comments, continued lines. What the assignments mean is not known
//! here.

use thiserror::Error;

/// Why a text is not a unit file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum SyntaxError {
    #[error("line {line}: {text:?} is neither a section, an assignment nor a comment")]
    NotAnAssignment { line: usize, text: String },
    #[error("line {line}: {key}= stands before the first section")]
    OutsideSection { line: usize, key: String },
    #[error("line {line}: the section's name is not closed")]
    OpenSection { line: usize },
    #[error("the file is larger than {limit} bytes")]
    TooLarge { limit: usize },
}

/// One `Key=value` with where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Assignment {
    pub section: String,
    pub key: String,
    pub value: String,
    pub line: usize,
}

/// Unit files are small; one that is not has been made to cost.
pub const LARGEST: usize = 1 << 20;

/// Reads the assignments of a file, in their order.
pub fn parse(text: &str) -> Result<Vec<Assignment>, SyntaxError> {
    if text.len() > LARGEST {
        return Err(SyntaxError::TooLarge { limit: LARGEST });
    }
    let mut out = Vec::new();
    let mut section: Option<String> = None;
    // A logical line and the number of its first part.
    let mut pending: Option<(usize, String)> = None;
    for (index, raw) in text.lines().enumerate() {
        let line = index + 1;
        let trimmed = raw.trim_start();
        // Comments may stand between the parts of a continued line.
        if trimmed.starts_with(['#', ';']) || (trimmed.is_empty() && pending.is_none()) {
            continue;
        }
        let (first, mut logical) = pending.take().unwrap_or((line, String::new()));
        match raw.trim_end().strip_suffix('\\') {
            Some(part) => {
                logical.push_str(part);
                logical.push(' ');
                pending = Some((first, logical));
            }
            None => {
                logical.push_str(raw);
                accept(first, logical.trim(), &mut section, &mut out)?;
            }
        }
    }
    if let Some((first, logical)) = pending {
        accept(first, logical.trim(), &mut section, &mut out)?;
    }
    Ok(out)
}

fn accept(
    line: usize,
    text: &str,
    section: &mut Option<String>,
    out: &mut Vec<Assignment>,
) -> Result<(), SyntaxError> {
    if let Some(rest) = text.strip_prefix('[') {
        let name = rest.strip_suffix(']').ok_or(SyntaxError::OpenSection { line })?;
        *section = Some(name.to_owned());
        return Ok(());
    }
    let Some((key, value)) = text.split_once('=') else {
        return Err(SyntaxError::NotAnAssignment { line, text: text.chars().take(80).collect() });
    };
    let key = key.trim().to_owned();
    let Some(section) = section else { return Err(SyntaxError::OutsideSection { line, key }) };
    out.push(Assignment { section: section.clone(), key, value: value.trim().to_owned(), line });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continued_lines_are_one_and_comments_inside_them_vanish() {
        let text = "# c\n[Service]\nExecStart=/bin/a \\\n# why\n  --b \\\n  c\n; d\nUser = me \n";
        let all = parse(text).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].key.as_str(), all[0].line), ("ExecStart", 3));
        assert_eq!(all[0].value.split_whitespace().collect::<Vec<_>>(), ["/bin/a", "--b", "c"]);
        assert_eq!((all[1].section.as_str(), all[1].value.as_str()), ("Service", "me"));
    }

    #[test]
    fn what_is_no_unit_file_is_refused_with_its_line() {
        assert_eq!(parse("A=b"), Err(SyntaxError::OutsideSection { line: 1, key: "A".into() }));
        assert_eq!(parse("[Unit\n"), Err(SyntaxError::OpenSection { line: 1 }));
        let error = parse("[Unit]\nhello\n").unwrap_err();
        assert_eq!(error, SyntaxError::NotAnAssignment { line: 2, text: "hello".into() });
    }
}
