//! Query strings: names and values, decoded.

/// The pairs of a query, in order.
pub struct Query(Vec<(String, String)>);

pub fn parse(text: &str) -> Query {
    let decode = |part: &str| percent_decode(&part.replace('+', " "));
    Query(
        text.split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decode(name), decode(value))
            })
            .collect(),
    )
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Query {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// True for `1`, `true`, and the bare name.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value, "1" | "true" | "True" | "TRUE" | "t" | ""))
    }

    /// A number; `Err` with the text if it is not one.
    pub fn number(&self, name: &str) -> Result<Option<u64>, String> {
        match self.get(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => value.parse().map(Some).map_err(|_| format!("{name}: {value:?} is not a number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = parse("command=sh&command=-c&command=echo%20a%2Bb+c&stdin=1&tty&bad=%zz&n=x");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo a+b c"]);
        assert!(query.flag("stdin") && query.flag("tty") && !query.flag("stdout"));
        assert_eq!(query.get("bad"), Some("%zz"));
        assert!(query.number("n").is_err() && query.number("m") == Ok(None));
    }
}
