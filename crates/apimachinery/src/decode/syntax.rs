//! What Go's JSON scanner says of text that is no JSON. Only looked at after a parser has refused the text.

/// Deeper nesting is refused.
const MAX_DEPTH: usize = 10_000;

/// What the scanner is in the middle of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Object,
    Array,
}

/// The complaint; `None` if this is JSON after all.
pub fn complaint(bytes: &[u8]) -> Option<String> {
    let mut scanner = Scanner { bytes, at: 0 };
    scanner.document().err()
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

const END: &str = "unexpected end of JSON input";

impl Scanner<'_> {
    fn next(&mut self) -> Result<u8, String> {
        let byte = self.bytes.get(self.at).copied().ok_or(END)?;
        self.at += 1;
        Ok(byte)
    }

    /// The next byte that is no space.
    fn token(&mut self) -> Result<u8, String> {
        loop {
            match self.next()? {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                byte => return Ok(byte),
            }
        }
    }

    fn document(&mut self) -> Result<(), String> {
        let mut stack: Vec<Inside> = Vec::new();
        let mut byte = self.token()?;
        loop {
            // A value begins here.
            match byte {
                b'{' | b'[' => {
                    if stack.len() >= MAX_DEPTH {
                        return Err("exceeded max depth".to_owned());
                    }
                    let first = self.token()?;
                    match (byte, first) {
                        (b'{', b'}') | (b'[', b']') => {}
                        (b'{', first) => {
                            stack.push(Inside::Object);
                            byte = self.key(first)?;
                            continue;
                        }
                        (_, first) => {
                            stack.push(Inside::Array);
                            byte = first;
                            continue;
                        }
                    }
                }
                b'"' => self.text()?,
                b't' => self.literal("true")?,
                b'f' => self.literal("false")?,
                b'n' => self.literal("null")?,
                b'-' | b'0'..=b'9' => self.number(byte)?,
                other => return Err(refuse(other, "looking for beginning of value")),
            }
            // It has ended; go up while containers end too.
            loop {
                let Some(inside) = stack.last() else {
                    return match self.token() {
                        Ok(other) => Err(refuse(other, "after top-level value")),
                        Err(_) => Ok(()),
                    };
                };
                match (inside, self.token()?) {
                    (Inside::Object, b'}') | (Inside::Array, b']') => {
                        stack.pop();
                    }
                    (Inside::Object, b',') => {
                        let first = self.token()?;
                        byte = self.key(first)?;
                        break;
                    }
                    (Inside::Array, b',') => {
                        byte = self.token()?;
                        break;
                    }
                    (Inside::Object, other) => return Err(refuse(other, "after object key:value pair")),
                    (Inside::Array, other) => return Err(refuse(other, "after array element")),
                }
            }
        }
    }

    /// A key and its colon; returns the first byte of the value.
    fn key(&mut self, first: u8) -> Result<u8, String> {
        if first != b'"' {
            return Err(refuse(first, "looking for beginning of object key string"));
        }
        self.text()?;
        match self.token()? {
            b':' => self.token(),
            other => Err(refuse(other, "after object key")),
        }
    }

    fn text(&mut self) -> Result<(), String> {
        loop {
            match self.next()? {
                b'"' => return Ok(()),
                b'\\' => match self.next()? {
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {}
                    b'u' => {
                        for _ in 0..4 {
                            let digit = self.next()?;
                            if !digit.is_ascii_hexdigit() {
                                return Err(refuse(digit, "in \\u hexadecimal character escape"));
                            }
                        }
                    }
                    other => return Err(refuse(other, "in string escape code")),
                },
                control if control < 0x20 => return Err(refuse(control, "in string literal")),
                _ => {}
            }
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for wanted in word.bytes().skip(1) {
            let byte = self.next()?;
            if byte != wanted {
                let context = format!("in literal {word} (expecting {})", quoted(wanted));
                return Err(refuse(byte, &context));
            }
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    fn number(&mut self, first: u8) -> Result<(), String> {
        let first = if first == b'-' { self.next()? } else { first };
        match first {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            other => return Err(refuse(other, "in numeric literal")),
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            let digit = self.next()?;
            if !digit.is_ascii_digit() {
                return Err(refuse(digit, "after decimal point in numeric literal"));
            }
            self.digits();
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            let mut digit = self.next()?;
            if matches!(digit, b'+' | b'-') {
                digit = self.next()?;
            }
            if !digit.is_ascii_digit() {
                return Err(refuse(digit, "in exponent of numeric literal"));
            }
            self.digits();
        }
        Ok(())
    }
}

fn refuse(byte: u8, context: &str) -> String {
    format!("invalid character {} {context}", quoted(byte))
}

/// A byte as Go shows it: bytes are taken for code points.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        7 => r"'\a'".to_owned(),
        8 => r"'\b'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        11 => r"'\v'".to_owned(),
        12 => r"'\f'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        0x20..=0x7e => format!("'{}'", char::from(byte)),
        0xa1..=0xac | 0xae..=0xff => format!("'{}'", char::from(byte)),
        0x80..=0xa0 | 0xad => format!("'\\u{byte:04x}'"),
        _ => format!("'\\x{byte:02x}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_those_of_go() {
        for (text, want) in [
            ("{", "unexpected end of JSON input"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{} y", "invalid character 'y' after top-level value"),
            ("{a", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("\"\\q\"", "invalid character 'q' in string escape code"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
            ("\0", "invalid character '\\x00' looking for beginning of value"),
        ] {
            assert_eq!(complaint(text.as_bytes()).as_deref(), Some(want), "{text:?}");
        }
        for text in ["{}", " [1, {\"a\": [null, true, \"\\u00e9\"]}, -0.5e+3] ", "0"] {
            assert_eq!(complaint(text.as_bytes()), None, "{text:?}");
        }
        let deep = "[".repeat(10_001);
        assert_eq!(complaint(deep.as_bytes()).as_deref(), Some("exceeded max depth"));
    }
}
