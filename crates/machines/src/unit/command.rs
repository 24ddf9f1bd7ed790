//! Command lines of units: prefixes, quoting, specifiers, and variables.

use std::collections::BTreeMap;

use thiserror::Error;

/// Why a command line cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum CommandError {
    #[error("a quote in {0:?} is not closed")]
    OpenQuote(String),
    #[error("escape {0:?} is unknown")]
    Escape(String),
    #[error("specifier %{0} is unknown")]
    Specifier(char),
    #[error("the program {0:?} is not an absolute path")]
    Relative(String),
    #[error("the command line is empty")]
    Empty,
    #[error("prefix {0:?} of a command is not supported")]
    Prefix(char),
}

/// One command of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Command {
    /// `-`: failing is success.
    pub may_fail: bool,
    /// `:`: variables are not expanded.
    pub literal: bool,
    /// `+` and `!`: the unit's User= does not count.
    pub privileged: bool,
    /// What is run.
    pub program: String,
    /// `@`: the name that the program sees.
    pub name: Option<String>,
    /// Its arguments, not yet expanded.
    pub arguments: Vec<String>,
}

/// What specifiers stand for.
#[derive(Debug, Clone, Default)]
pub struct Specifiers {
    /// The unit's whole name.
    pub unit: String,
    /// The machine's.
    pub hostname: String,
    /// /etc/machine-id.
    pub machine_id: String,
    /// This boot's.
    pub boot_id: String,
}

impl Specifiers {
    /// Replaces specifiers in a text.
    pub fn expand(&self, text: &str) -> Result<String, CommandError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text.chars();
        let (stem, _) = self.unit.rsplit_once('.').unwrap_or((&self.unit, ""));
        let (prefix, instance) = stem.split_once('@').unwrap_or((stem, ""));
        while let Some(char) = rest.next() {
            if char != '%' {
                out.push(char);
                continue;
            }
            match rest.next() {
                Some('%') => out.push('%'),
                Some('n') => out.push_str(&self.unit),
                Some('N') => out.push_str(stem),
                Some('p' | 'P') => out.push_str(prefix),
                Some('i' | 'I') => out.push_str(instance),
                Some('j' | 'J') => out.push_str(prefix.rsplit('-').next().unwrap_or(prefix)),
                Some('f') => {
                    out.push_str(&format!("/{}", if instance.is_empty() { prefix } else { instance }))
                }
                Some('H' | 'l') => out.push_str(&self.hostname),
                Some('m') => out.push_str(&self.machine_id),
                Some('b') => out.push_str(&self.boot_id),
                Some('t') => out.push_str("/run"),
                Some('S') => out.push_str("/var/lib"),
                Some('C') => out.push_str("/var/cache"),
                Some('L') => out.push_str("/var/log"),
                Some('E') => out.push_str("/etc"),
                Some('T') => out.push_str("/tmp"),
                Some('V') => out.push_str("/var/tmp"),
                Some('u') => out.push_str("root"),
                Some('U') => out.push('0'),
                Some('h') => out.push_str("/root"),
                other => return Err(CommandError::Specifier(other.unwrap_or(' '))),
            }
        }
        Ok(out)
    }
}

/// Splits a text into words at spaces, honouring quotes and backslashes.
pub fn words(text: &str) -> Result<Vec<String>, CommandError> {
    let mut out = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (Some(open), _) if char == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (_, '\\') => word.get_or_insert_default().push(escape(&mut chars)?),
            (None, _) if char.is_whitespace() => out.extend(word.take()),
            _ => word.get_or_insert_default().push(char),
        }
    }
    if quote.is_some() {
        return Err(CommandError::OpenQuote(text.to_owned()));
    }
    out.extend(word);
    Ok(out)
}

fn escape(chars: &mut std::str::Chars<'_>) -> Result<char, CommandError> {
    let Some(char) = chars.next() else { return Err(CommandError::Escape("\\".to_owned())) };
    Ok(match char {
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        's' => ' ',
        '\\' | '"' | '\'' | ' ' => char,
        'x' => {
            let digits: String = chars.by_ref().take(2).collect();
            u8::from_str_radix(&digits, 16)
                .map(char::from)
                .map_err(|_| CommandError::Escape(format!("\\x{digits}")))?
        }
        other => return Err(CommandError::Escape(format!("\\{other}"))),
    })
}

impl Command {
    /// Reads the value of an Exec directive: one command, or several with `;` between them.
    pub fn parse(value: &str, specifiers: &Specifiers) -> Result<Vec<Self>, CommandError> {
        let mut commands = Vec::new();
        let mut current: Vec<String> = Vec::new();
        for word in words(value)? {
            match word.as_str() {
                ";" => commands.push(std::mem::take(&mut current)),
                "\\;" => current.push(";".to_owned()),
                _ => current.push(word),
            }
        }
        commands.push(current);
        commands
            .into_iter()
            .filter(|words| !words.is_empty())
            .map(|words| Self::from_words(words, specifiers))
            .collect()
    }

    fn from_words(words: Vec<String>, specifiers: &Specifiers) -> Result<Self, CommandError> {
        let mut words = words.into_iter();
        let first = words.next().ok_or(CommandError::Empty)?;
        let mut command = Self::default();
        let mut named = false;
        let mut program = first.as_str();
        while let Some(prefix) = program.chars().next().filter(|char| "-@:+!|".contains(*char)) {
            match prefix {
                '-' => command.may_fail = true,
                '@' => named = true,
                ':' => command.literal = true,
                '+' | '!' => command.privileged = true,
                other => return Err(CommandError::Prefix(other)),
            }
            program = &program[1..];
        }
        command.program = specifiers.expand(program)?;
        if !command.program.starts_with('/') {
            return Err(CommandError::Relative(command.program));
        }
        if named {
            command.name = Some(specifiers.expand(&words.next().ok_or(CommandError::Empty)?)?);
        }
        command.arguments = words.map(|word| specifiers.expand(&word)).collect::<Result<_, _>>()?;
        Ok(command)
    }

    /// The arguments with variables replaced: `${A}` within a word, `$A` alone becomes as many words as it has.
    pub fn expanded(&self, environment: &BTreeMap<String, String>) -> Vec<String> {
        if self.literal {
            return self.arguments.clone();
        }
        let value = |name: &str| environment.get(name).map(String::as_str).unwrap_or_default();
        let mut out = Vec::new();
        for argument in &self.arguments {
            match argument.strip_prefix('$').filter(|name| is_name(name)) {
                Some(name) => out.extend(value(name).split_whitespace().map(str::to_owned)),
                None => out.push(substitute(argument, &value)),
            }
        }
        out
    }
}

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|char| char.is_ascii_alphanumeric() || char == '_')
}

fn substitute<'a>(text: &str, value: &dyn Fn(&str) -> &'a str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) =
            after.strip_prefix('{').and_then(|inner| inner.split_once('}')).filter(|(name, _)| is_name(name))
        {
            out.push_str(value(name));
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// Reads a file of `NAME=value` lines, as EnvironmentFile= does.
pub fn environment_file(text: &str) -> Vec<(String, String)> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| {
            let value = value.trim();
            let unquoted = ['"', '\'']
                .iter()
                .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote))
                .unwrap_or(value);
            (name.trim().to_owned(), unquoted.to_owned())
        })
        .filter(|(name, _)| is_name(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specifiers() -> Specifiers {
        Specifiers { unit: "getty@tty1.service".into(), hostname: "m0".into(), ..Specifiers::default() }
    }

    #[test]
    fn prefixes_quotes_and_specifiers_are_read() {
        let commands =
            Command::parse(r#"-@/bin/sh sh -c "echo 'a b' %i" 100%% ; :/bin/x $A"#, &specifiers()).unwrap();
        assert_eq!(commands.len(), 2);
        assert!(commands[0].may_fail && commands[1].literal);
        assert_eq!(commands[0].name.as_deref(), Some("sh"));
        assert_eq!(commands[0].arguments, ["-c", "echo 'a b' tty1", "100%"]);
        assert_eq!(commands[1].expanded(&BTreeMap::new()), ["$A"]);
        assert_eq!(Command::parse("sh", &specifiers()), Err(CommandError::Relative("sh".into())));
        assert_eq!(Command::parse("/a %q", &specifiers()), Err(CommandError::Specifier('q')));
        assert!(matches!(Command::parse("/a 'b", &specifiers()), Err(CommandError::OpenQuote(_))));
    }

    #[test]
    fn a_variable_alone_becomes_words_and_within_a_word_it_does_not() {
        let command = Command::parse("/a $W --x=${W}-$$y ${NONE}", &specifiers()).unwrap().remove(0);
        let environment = BTreeMap::from([("W".to_owned(), "b c".to_owned())]);
        assert_eq!(command.expanded(&environment), ["b", "c", "--x=b c-$y", ""]);
    }

    #[test]
    fn environment_files_are_lines_with_optional_quotes() {
        let read = environment_file("# c\nA='b c'\nB=\"d\"\n bad name=x\nC = e\n");
        let pairs: Vec<(&str, &str)> = read.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(pairs, [("A", "b c"), ("B", "d"), ("C", "e")]);
    }
}
