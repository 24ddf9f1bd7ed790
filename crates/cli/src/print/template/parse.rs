//! From the text of a template to its tree.

use std::collections::HashMap;

use super::TemplateError;

/// How deep parentheses and blocks may stand in each other.
const MAX_DEPTH: usize = 100;

#[derive(Debug, Clone)]
pub enum Node {
    Text(String),
    Action(Pipe),
    If(Pipe, Vec<Node>, Vec<Node>),
    With(Pipe, Vec<Node>, Vec<Node>),
    Range(Pipe, Vec<Node>, Vec<Node>),
    Template(String, Option<Pipe>, Place),
    Break,
    Continue,
}

/// Where something stands, for messages.
#[derive(Debug, Clone, Default)]
pub struct Place {
    pub line: usize,
    pub column: usize,
    pub text: String,
}

#[derive(Debug, Clone)]
pub struct Pipe {
    /// Variables that are declared, or set.
    pub variables: Vec<String>,
    pub declares: bool,
    pub commands: Vec<Vec<Term>>,
    pub place: Place,
}

#[derive(Debug, Clone)]
pub enum Term {
    Dot,
    Nil,
    Field(Vec<String>),
    Variable(String, Vec<String>),
    Function(String),
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    Paren(Box<Pipe>, Vec<String>),
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Field(String),
    Variable(String),
    Word(String),
    Text(String),
    Char(i64),
    Number(String),
    Dot,
    Pipe,
    Open,
    Close,
    Comma,
    Declare,
    Assign,
    Space,
}

enum Piece {
    Text(String),
    Action { tokens: Vec<Token>, place: Place },
}

pub type Parsed = (Vec<Node>, HashMap<String, Vec<Node>>);

pub fn parse(text: &str) -> Result<Parsed, TemplateError> {
    let pieces = pieces(text)?;
    let mut parser = Parser { pieces, at: 0, defined: HashMap::new(), depth: 0 };
    let (body, end) = parser.block()?;
    match end {
        None => Ok((body, parser.defined)),
        Some((word, line)) => {
            Err(TemplateError::Parse { line, reason: format!("unexpected {{{{{word}}}}}") })
        }
    }
}

fn pieces(text: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut trim = false;
    let position = |rest: &str| {
        let before = &text[..text.len() - rest.len()];
        (before.matches('\n').count() + 1, before.rsplit('\n').next().unwrap_or_default().len())
    };
    loop {
        let Some(start) = rest.find("{{") else {
            let last = if trim { rest.trim_start() } else { rest };
            pieces.push(Piece::Text(last.to_owned()));
            return Ok(pieces);
        };
        let mut before = &rest[..start];
        if trim {
            before = before.trim_start();
        }
        let mut inner = &rest[start + 2..];
        let (line, column) = position(inner);
        if inner.starts_with('-') && inner[1..].starts_with(char::is_whitespace) {
            before = before.trim_end();
            inner = &inner[1..];
        }
        pieces.push(Piece::Text(before.to_owned()));
        let fail = |reason: &str| TemplateError::Parse { line, reason: reason.to_owned() };
        if let Some(comment) = inner.trim_start().strip_prefix("/*") {
            let end = comment.find("*/").ok_or_else(|| fail("unclosed comment"))?;
            let after = &comment[end + 2..];
            let spaces = after.trim_start();
            (trim, rest) = match spaces.strip_prefix("-}}") {
                Some(rest) if spaces.len() < after.len() => (true, rest),
                _ => (
                    false,
                    after.strip_prefix("}}").ok_or_else(|| fail("comment ends before closing delimiter"))?,
                ),
            };
            continue;
        }
        let (tokens, after) = tokens(inner, line)?;
        let shown = inner[..inner.len() - after.len()].trim().trim_end_matches('-').trim().to_owned();
        pieces.push(Piece::Action { tokens, place: Place { line, column, text: shown } });
        (trim, rest) = match after.trim_start().strip_prefix("-}}") {
            Some(rest) if after.starts_with(char::is_whitespace) => (true, rest),
            _ => (false, after.trim_start().strip_prefix("}}").ok_or_else(|| fail("unclosed action"))?),
        };
    }
}

/// The tokens of an action, and the rest, which begins with its end.
fn tokens(text: &str, line: usize) -> Result<(Vec<Token>, &str), TemplateError> {
    let fail = |reason: String| TemplateError::Parse { line, reason };
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        let trimmed = rest.trim_start();
        if trimmed.starts_with("}}") || (trimmed.starts_with("-}}") && trimmed.len() < rest.len()) {
            return Ok((found, rest));
        }
        if trimmed.len() < rest.len() {
            found.push(Token::Space);
            rest = trimmed;
        }
        let Some(letter) = rest.chars().next() else { return Err(fail("unclosed action".to_owned())) };
        let word = |from: usize| {
            let tail = &rest[from..];
            let end = tail.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(tail.len());
            (tail[..end].to_owned(), &tail[end..])
        };
        match letter {
            '.' if rest[1..].starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                let (name, after) = word(1);
                found.push(Token::Field(name));
                rest = after;
            }
            '.' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                found.push(Token::Dot);
                rest = &rest[1..];
            }
            '$' => {
                let (name, after) = word(1);
                found.push(Token::Variable(name));
                rest = after;
            }
            '|' | '(' | ')' | ',' | '=' => {
                found.push(match letter {
                    '|' => Token::Pipe,
                    '(' => Token::Open,
                    ')' => Token::Close,
                    ',' => Token::Comma,
                    _ => Token::Assign,
                });
                rest = &rest[1..];
            }
            ':' if rest.starts_with(":=") => {
                found.push(Token::Declare);
                rest = &rest[2..];
            }
            '"' | '\'' => {
                let (content, after) =
                    quoted(rest, letter).ok_or_else(|| fail("unterminated quoted string".to_owned()))?;
                match letter {
                    '"' => found.push(Token::Text(content)),
                    _ => {
                        let mut letters = content.chars();
                        let (Some(one), None) = (letters.next(), letters.next()) else {
                            return Err(fail("malformed character constant".to_owned()));
                        };
                        found.push(Token::Char(i64::from(u32::from(one))));
                    }
                }
                rest = after;
            }
            '`' => {
                let end =
                    rest[1..].find('`').ok_or_else(|| fail("unterminated raw quoted string".to_owned()))?;
                found.push(Token::Text(rest[1..=end].to_owned()));
                rest = &rest[end + 2..];
            }
            _ if letter.is_ascii_digit() || "+-.".contains(letter) => {
                let tail = &rest[1..];
                let end = tail
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_')
                    .unwrap_or(tail.len());
                found.push(Token::Number(rest[..=end].to_owned()));
                rest = &tail[end..];
            }
            _ if letter.is_alphabetic() || letter == '_' => {
                let (name, after) = word(0);
                found.push(Token::Word(name));
                rest = after;
            }
            other => return Err(fail(format!("unexpected {other:?} in command"))),
        }
    }
}

fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\n' => return None,
            '\\' => match letters.next()?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'a' => out.push('\u{7}'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'v' => out.push('\u{b}'),
                length @ ('x' | 'u' | 'U') => {
                    let count = match length {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let mut code = 0;
                    for _ in 0..count {
                        code = code * 16 + letters.next()?.1.to_digit(16)?;
                    }
                    out.push(char::from_u32(code)?);
                }
                other => out.push(other),
            },
            _ if letter == quote => return Some((out, &text[at + 1..])),
            other => out.push(other),
        }
    }
    None
}

struct Parser {
    pieces: Vec<Piece>,
    at: usize,
    defined: HashMap<String, Vec<Node>>,
    depth: usize,
}

impl Parser {
    /// The nodes up to `end` or `else`, which is returned with its line.
    fn block(&mut self) -> Result<(Vec<Node>, Option<(String, usize)>), TemplateError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TemplateError::Limit("blocks stand too deep in each other"));
        }
        let mut nodes = Vec::new();
        while self.at < self.pieces.len() {
            let index = self.at;
            self.at += 1;
            let (mut tokens, place) = match &self.pieces[index] {
                Piece::Text(text) => {
                    if !text.is_empty() {
                        nodes.push(Node::Text(text.clone()));
                    }
                    continue;
                }
                Piece::Action { tokens, place } => (tokens.clone(), place.clone()),
            };
            while tokens.first() == Some(&Token::Space) {
                tokens.remove(0);
            }
            let line = place.line;
            let fail = |reason: String| TemplateError::Parse { line, reason };
            let word = match tokens.first() {
                Some(Token::Word(word)) => word.clone(),
                _ => String::new(),
            };
            match word.as_str() {
                "end" => {
                    self.depth -= 1;
                    return Ok((nodes, Some((word, line))));
                }
                "else" => {
                    // `else if` is an `else` with an `if` in it; both end together.
                    self.depth -= 1;
                    tokens.remove(0);
                    let rest: Vec<Token> =
                        tokens.into_iter().skip_while(|token| *token == Token::Space).collect();
                    self.pieces[index] = Piece::Action { tokens: rest, place };
                    return Ok((nodes, Some((word, line))));
                }
                "if" | "with" | "range" => {
                    let pipe = pipe(&tokens[1..], &place, word == "range")?;
                    let (body, otherwise) = self.branches(&word, line)?;
                    nodes.push(match word.as_str() {
                        "if" => Node::If(pipe, body, otherwise),
                        "with" => Node::With(pipe, body, otherwise),
                        _ => Node::Range(pipe, body, otherwise),
                    });
                }
                "break" => nodes.push(Node::Break),
                "continue" => nodes.push(Node::Continue),
                "define" | "block" | "template" => {
                    let rest: Vec<&Token> =
                        tokens[1..].iter().filter(|token| **token != Token::Space).collect();
                    let Some(Token::Text(name)) = rest.first() else {
                        return Err(fail(format!("missing name in {word} clause")));
                    };
                    let name = name.clone();
                    let after = tokens
                        .iter()
                        .position(|token| matches!(token, Token::Text(_)))
                        .map_or(tokens.len(), |at| at + 1);
                    let argument = match tokens[after..].iter().any(|token| *token != Token::Space) {
                        true => Some(pipe(&tokens[after..], &place, false)?),
                        false => None,
                    };
                    if word != "template" {
                        let (body, end) = self.block()?;
                        if end.is_none_or(|(word, _)| word != "end") {
                            return Err(fail("unexpected EOF".to_owned()));
                        }
                        self.defined.insert(name.clone(), body);
                    }
                    if word != "define" {
                        nodes.push(Node::Template(name, argument, place));
                    }
                }
                _ => nodes.push(Node::Action(pipe(&tokens, &place, false)?)),
            }
        }
        self.depth -= 1;
        Ok((nodes, None))
    }

    fn branches(&mut self, word: &str, line: usize) -> Result<(Vec<Node>, Vec<Node>), TemplateError> {
        let eof = || TemplateError::Parse { line, reason: "unexpected EOF".to_owned() };
        let (body, end) = self.block()?;
        let (end, _) = end.ok_or_else(eof)?;
        if end == "end" {
            return Ok((body, Vec::new()));
        }
        let chained = matches!(&self.pieces[self.at - 1],
            Piece::Action { tokens, .. } if matches!(tokens.first(), Some(Token::Word(next)) if next == "if" || next == "with"));
        if chained && word != "range" {
            let Piece::Action { tokens, place } = &self.pieces[self.at - 1] else { return Err(eof()) };
            let Some(Token::Word(next)) = tokens.first() else { return Err(eof()) };
            let (next, place) = (next.clone(), place.clone());
            let pipe = pipe(&tokens[1..], &place, false)?;
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return Err(TemplateError::Limit("blocks stand too deep in each other"));
            }
            let (inner, otherwise) = self.branches(&next, line)?;
            self.depth -= 1;
            let node = if next == "if" {
                Node::If(pipe, inner, otherwise)
            } else {
                Node::With(pipe, inner, otherwise)
            };
            return Ok((body, vec![node]));
        }
        let (otherwise, end) = self.block()?;
        match end {
            Some((word, _)) if word == "end" => Ok((body, otherwise)),
            _ => Err(eof()),
        }
    }
}

fn pipe(tokens: &[Token], place: &Place, in_range: bool) -> Result<Pipe, TemplateError> {
    let mut cursor = Cursor { tokens, at: 0, place, depth: 0 };
    let pipe = cursor.pipe(in_range)?;
    if cursor.at < tokens.len() {
        return Err(cursor.fail("unexpected right paren"));
    }
    Ok(pipe)
}

struct Cursor<'a> {
    tokens: &'a [Token],
    at: usize,
    place: &'a Place,
    depth: usize,
}

impl Cursor<'_> {
    fn fail(&self, reason: &str) -> TemplateError {
        TemplateError::Parse { line: self.place.line, reason: format!("{reason} in <{}>", self.place.text) }
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn spaces(&mut self) {
        while self.peek() == Some(&Token::Space) {
            self.at += 1;
        }
    }

    fn pipe(&mut self, in_range: bool) -> Result<Pipe, TemplateError> {
        self.spaces();
        let (mut variables, mut declares) = (Vec::new(), false);
        let plain: Vec<&Token> =
            self.tokens[self.at..].iter().filter(|token| **token != Token::Space).take(4).collect();
        let count = match plain[..] {
            [Token::Variable(first), Token::Declare | Token::Assign, ..] => {
                variables.push(first.clone());
                2
            }
            [
                Token::Variable(first),
                Token::Comma,
                Token::Variable(second),
                Token::Declare | Token::Assign,
            ] if in_range => {
                variables.extend([first.clone(), second.clone()]);
                4
            }
            _ => 0,
        };
        let mut left = count;
        while left > 0 {
            if self.tokens[self.at] != Token::Space {
                left -= 1;
                declares = self.tokens[self.at] == Token::Declare;
            }
            self.at += 1;
        }
        let mut commands = Vec::new();
        loop {
            let command = self.command()?;
            if command.is_empty() {
                return Err(self.fail("missing value for command"));
            }
            commands.push(command);
            self.spaces();
            match self.peek() {
                Some(Token::Pipe) => self.at += 1,
                _ => break,
            }
        }
        Ok(Pipe { variables, declares, commands, place: self.place.clone() })
    }

    fn command(&mut self) -> Result<Vec<Term>, TemplateError> {
        let mut terms = Vec::new();
        loop {
            self.spaces();
            let Some(token) = self.peek().cloned() else { return Ok(terms) };
            let term = match token {
                Token::Pipe | Token::Close => return Ok(terms),
                Token::Dot => {
                    self.at += 1;
                    Term::Dot
                }
                Token::Field(_) => Term::Field(self.fields()),
                Token::Variable(name) => {
                    self.at += 1;
                    Term::Variable(name, self.fields())
                }
                Token::Word(word) => {
                    self.at += 1;
                    match word.as_str() {
                        "nil" => Term::Nil,
                        "true" => Term::Bool(true),
                        "false" => Term::Bool(false),
                        _ if super::functions::is_known(&word) => Term::Function(word),
                        _ => {
                            return Err(TemplateError::Parse {
                                line: self.place.line,
                                reason: format!("function {word:?} not defined"),
                            });
                        }
                    }
                }
                Token::Text(text) => {
                    self.at += 1;
                    Term::Text(text)
                }
                Token::Char(code) => {
                    self.at += 1;
                    Term::Int(code)
                }
                Token::Number(text) => {
                    self.at += 1;
                    number(&text).ok_or_else(|| self.fail(&format!("bad number syntax: {text:?}")))?
                }
                Token::Open => {
                    self.at += 1;
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        return Err(TemplateError::Limit("parentheses stand too deep in each other"));
                    }
                    let inner = self.pipe(false)?;
                    self.depth -= 1;
                    if self.peek() != Some(&Token::Close) {
                        return Err(self.fail("unclosed left paren"));
                    }
                    self.at += 1;
                    Term::Paren(Box::new(inner), self.fields())
                }
                Token::Comma | Token::Declare | Token::Assign | Token::Space => {
                    return Err(self.fail("unexpected token"));
                }
            };
            terms.push(term);
        }
    }

    fn fields(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(Token::Field(name)) = self.peek() {
            names.push(name.clone());
            self.at += 1;
        }
        names
    }
}

fn number(text: &str) -> Option<Term> {
    let clean = text.replace('_', "");
    let (sign, digits) = match clean.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, clean.strip_prefix('+').unwrap_or(&clean)),
    };
    for (prefix, radix) in [("0x", 16), ("0X", 16), ("0b", 2), ("0o", 8)] {
        if let Some(digits) = digits.strip_prefix(prefix) {
            return i64::from_str_radix(digits, radix).ok().map(|number| Term::Int(sign * number));
        }
    }
    match clean.parse::<i64>() {
        Ok(number) => Some(Term::Int(number)),
        Err(_) => clean.parse::<f64>().ok().map(Term::Float),
    }
}
