//! Source text to tokens.

use crate::issue::Issue;

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    /// A name or a word of the language.
    Name(String),
    /// `1`, without sign; may be one too large for a positive number.
    Int(u64),
    /// `1u`
    Uint(u64),
    /// `1.5`
    Double(f64),
    /// `'a'`
    Text(String),
    /// `b'a'`
    Bytes(Vec<u8>),
    /// An operator or bracket.
    Mark(&'static str),
    /// The end.
    End,
}

const MARKS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")",
    "[", "]", "{", "}",
];

/// Tokens with their byte offsets; the last is [`Token::End`].
pub fn tokens(source: &str) -> Result<Vec<(usize, Token)>, Issue> {
    let mut lexer = Lexer { source, bytes: source.as_bytes(), at: 0 };
    let mut out = Vec::new();
    loop {
        lexer.skip_blank();
        let start = lexer.at;
        let token = lexer.next(start)?;
        let end = token == Token::End;
        out.push((start, token));
        if end {
            return Ok(out);
        }
    }
}

struct Lexer<'s> {
    source: &'s str,
    bytes: &'s [u8],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn skip_blank(&mut self) {
        loop {
            while self.peek(0).is_ascii_whitespace() {
                self.at += 1;
            }
            if self.peek(0) != b'/' || self.peek(1) != b'/' {
                return;
            }
            while self.at < self.bytes.len() && self.peek(0) != b'\n' {
                self.at += 1;
            }
        }
    }

    fn next(&mut self, start: usize) -> Result<Token, Issue> {
        let byte = self.peek(0);
        if self.at >= self.bytes.len() {
            return Ok(Token::End);
        }
        if let Some((raw, bytes)) = self.quote_ahead() {
            return self.quoted(start, raw, bytes);
        }
        if byte.is_ascii_alphabetic() || byte == b'_' {
            while self.peek(0).is_ascii_alphanumeric() || self.peek(0) == b'_' {
                self.at += 1;
            }
            return Ok(Token::Name(self.source[start..self.at].to_owned()));
        }
        if byte.is_ascii_digit() || byte == b'.' && self.peek(1).is_ascii_digit() {
            return self.number(start);
        }
        let rest = &self.source[self.at..];
        match MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            Some(mark) => {
                self.at += mark.len();
                Ok(Token::Mark(mark))
            }
            None => {
                let letter = rest.chars().next().unwrap_or(' ');
                Err(Issue::new(start, format!("Syntax error: token recognition error at: '{letter}'")))
            }
        }
    }

    /// Whether a quoted text starts here: raw, bytes.
    fn quote_ahead(&self) -> Option<(bool, bool)> {
        let (mut raw, mut bytes, mut ahead) = (false, false, 0);
        loop {
            match self.peek(ahead) {
                b'r' | b'R' if !raw => raw = true,
                b'b' | b'B' if !bytes => bytes = true,
                b'\'' | b'"' => return Some((raw, bytes)),
                _ => return None,
            }
            ahead += 1;
        }
    }

    fn number(&mut self, start: usize) -> Result<Token, Issue> {
        let bad = || Issue::new(start, "Syntax error: invalid number".to_owned());
        if self.peek(0) == b'0' && matches!(self.peek(1), b'x' | b'X') {
            self.at += 2;
            while self.peek(0).is_ascii_hexdigit() {
                self.at += 1;
            }
            let value = u64::from_str_radix(&self.source[start + 2..self.at], 16).map_err(|_| bad())?;
            return Ok(self.unsigned(value));
        }
        let mut double = false;
        while self.peek(0).is_ascii_digit() {
            self.at += 1;
        }
        if self.peek(0) == b'.' && self.peek(1).is_ascii_digit() {
            double = true;
            self.at += 1;
            while self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
        }
        if matches!(self.peek(0), b'e' | b'E') {
            let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
            if self.peek(1 + sign).is_ascii_digit() {
                double = true;
                self.at += 1 + sign;
                while self.peek(0).is_ascii_digit() {
                    self.at += 1;
                }
            }
        }
        let text = &self.source[start..self.at];
        if double {
            return text.parse().map(Token::Double).map_err(|_| bad());
        }
        let value = text.parse().map_err(|_| Issue::new(start, "invalid int literal".to_owned()))?;
        Ok(self.unsigned(value))
    }

    fn unsigned(&mut self, value: u64) -> Token {
        if matches!(self.peek(0), b'u' | b'U') {
            self.at += 1;
            Token::Uint(value)
        } else {
            Token::Int(value)
        }
    }

    fn quoted(&mut self, start: usize, raw: bool, bytes: bool) -> Result<Token, Issue> {
        let bad = |text: &str| Issue::new(start, format!("Syntax error: {text}"));
        self.at += usize::from(raw) + usize::from(bytes);
        let quote = self.peek(0);
        let long = self.peek(1) == quote && self.peek(2) == quote;
        let width = if long { 3 } else { 1 };
        self.at += width;
        let mut out: Vec<u8> = Vec::new();
        loop {
            if self.at >= self.bytes.len() {
                return Err(bad("unterminated string literal"));
            }
            if (0..width).all(|ahead| self.peek(ahead) == quote) {
                self.at += width;
                break;
            }
            match self.peek(0) {
                b'\n' | b'\r' if !long => return Err(bad("unterminated string literal")),
                b'\\' if !raw => self.escape(bytes, &mut out).map_err(|()| bad("invalid escape sequence"))?,
                byte => {
                    out.push(byte);
                    self.at += 1;
                }
            }
        }
        if bytes {
            return Ok(Token::Bytes(out));
        }
        String::from_utf8(out).map(Token::Text).map_err(|_| bad("string literal is not valid UTF-8"))
    }

    fn escape(&mut self, bytes: bool, out: &mut Vec<u8>) -> Result<(), ()> {
        let letter = self.peek(1);
        self.at += 2;
        let plain = match letter {
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'\\' | b'\'' | b'"' | b'`' | b'?' => letter,
            b'x' | b'X' => return self.code(2, 16, bytes, out),
            b'u' if !bytes => return self.code(4, 16, false, out),
            b'U' if !bytes => return self.code(8, 16, false, out),
            b'0'..=b'3' => {
                self.at -= 1;
                return self.code(3, 8, bytes, out);
            }
            _ => return Err(()),
        };
        out.push(plain);
        Ok(())
    }

    fn code(&mut self, digits: usize, radix: u32, byte: bool, out: &mut Vec<u8>) -> Result<(), ()> {
        let text = self.source.get(self.at..self.at + digits).ok_or(())?;
        let code = u32::from_str_radix(text, radix).map_err(|_| ())?;
        self.at += digits;
        if byte {
            out.push(u8::try_from(code).map_err(|_| ())?);
        } else {
            let letter = char::from_u32(code).ok_or(())?;
            out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(())
    }
}
