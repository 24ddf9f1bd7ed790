//! Which controllers of a program run.

/// The value of `--controllers`: names, `-name` to leave one out, `*` for all that run by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Vec<String>);

impl Default for Selection {
    fn default() -> Self {
        Self(vec!["*".into()])
    }
}

impl Selection {
    /// Reads the flag's values.
    pub fn new(words: impl IntoIterator<Item = String>) -> Self {
        Self(words.into_iter().collect())
    }

    /// Whether a controller runs, given whether it does by default.
    pub fn includes(&self, name: &str, by_default: bool) -> bool {
        if self.0.iter().any(|word| word == name) {
            return true;
        }
        if self.0.iter().any(|word| word.strip_prefix('-') == Some(name)) {
            return false;
        }
        by_default && self.0.iter().any(|word| word == "*")
    }

    /// The same, but never with this one.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.0.retain(|word| word != name);
        self.0.push(format!("-{name}"));
        self
    }

    /// The words that name no controller.
    pub fn unknown<'a>(&'a self, known: &[&str]) -> Vec<&'a str> {
        let name = |word: &'a String| word.strip_prefix('-').unwrap_or(word);
        self.0.iter().map(name).filter(|name| *name != "*" && !known.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_reads_as_upstreams_flag() {
        let selection = |words: &[&str]| Selection::new(words.iter().map(|word| word.to_string()));
        let cases = [
            (selection(&["*"]), "a", true, true),
            (selection(&["*"]), "a", false, false),
            (selection(&["*", "-a"]), "a", true, false),
            (selection(&["*", "a"]), "a", false, true),
            (selection(&["b"]), "a", true, false),
        ];
        for (selection, name, by_default, wanted) in cases {
            assert_eq!(selection.includes(name, by_default), wanted, "{selection:?} {name} {by_default}");
        }
        assert!(!selection(&["*", "a"]).without("a").includes("a", true));
        assert_eq!(selection(&["*", "-x", "a"]).unknown(&["a"]), ["x"]);
    }
}
