//! Conditions: whether a unit has work here. What they ask is answered by a [`Host`], so that deciding is pure.

/// One question with its answer wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `|`: one of the triggering conditions is enough.
    pub trigger: bool,
    /// `!`: holds if the answer is no.
    pub negate: bool,
    /// What is asked.
    pub test: Test,
}

/// Questions about the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Test {
    PathExists(String),
    PathExistsGlob(String),
    PathIsDirectory(String),
    PathIsSymbolicLink(String),
    PathIsMountPoint(String),
    PathIsReadWrite(String),
    DirectoryNotEmpty(String),
    FileNotEmpty(String),
    FileIsExecutable(String),
    KernelCommandLine(String),
    Virtualization(String),
    FirstBoot(bool),
    Host(String),
    Architecture(String),
}

/// Answers questions.
pub trait Host {
    /// Whether the answer is yes.
    fn holds(&self, test: &Test) -> bool;
}

impl Condition {
    /// Reads a Condition directive without its `Condition` or `Assert`; `None` if the question is unknown.
    pub fn parse(name: &str, value: &str) -> Option<Self> {
        let (trigger, value) = strip(value, '|');
        let (negate, value) = strip(value, '!');
        let text = value.to_owned();
        let test = match name {
            "PathExists" => Test::PathExists(text),
            "PathExistsGlob" => Test::PathExistsGlob(text),
            "PathIsDirectory" => Test::PathIsDirectory(text),
            "PathIsSymbolicLink" => Test::PathIsSymbolicLink(text),
            "PathIsMountPoint" => Test::PathIsMountPoint(text),
            "PathIsReadWrite" => Test::PathIsReadWrite(text),
            "DirectoryNotEmpty" => Test::DirectoryNotEmpty(text),
            "FileNotEmpty" => Test::FileNotEmpty(text),
            "FileIsExecutable" => Test::FileIsExecutable(text),
            "KernelCommandLine" => Test::KernelCommandLine(text),
            "Virtualization" => Test::Virtualization(text),
            "FirstBoot" => Test::FirstBoot(super::directives::boolean(value)?),
            "Host" => Test::Host(text),
            "Architecture" => Test::Architecture(text),
            _ => return None,
        };
        Some(Self { trigger, negate, test })
    }
}

fn strip(value: &str, mark: char) -> (bool, &str) {
    match value.strip_prefix(mark) {
        Some(rest) => (true, rest.trim_start()),
        None => (false, value),
    }
}

/// Whether all hold: each plain one, and one of the triggering ones if there are any. The first that fails is given.
pub fn first_unmet<'a>(conditions: &'a [Condition], host: &dyn Host) -> Option<&'a Condition> {
    let holds = |condition: &Condition| host.holds(&condition.test) != condition.negate;
    if let Some(failed) = conditions.iter().find(|condition| !condition.trigger && !holds(condition)) {
        return Some(failed);
    }
    let mut triggers = conditions.iter().filter(|condition| condition.trigger).peekable();
    let first = triggers.peek().copied();
    if first.is_some() && !triggers.any(holds) { first } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exists(&'static [&'static str]);

    impl Host for Exists {
        fn holds(&self, test: &Test) -> bool {
            matches!(test, Test::PathExists(path) if self.0.contains(&path.as_str()))
        }
    }

    fn conditions(values: &[&str]) -> Vec<Condition> {
        values.iter().map(|value| Condition::parse("PathExists", value).unwrap()).collect()
    }

    #[test]
    fn plain_conditions_all_hold_and_of_triggers_one() {
        let host = Exists(&["/a"]);
        assert!(first_unmet(&conditions(&["/a", "!/b"]), &host).is_none());
        assert!(first_unmet(&conditions(&["/a", "/b"]), &host).is_some());
        assert!(first_unmet(&conditions(&["|/a", "|/b"]), &host).is_none());
        assert!(first_unmet(&conditions(&["|/c", "|/b", "/a"]), &host).is_some());
        assert!(Condition::parse("Security", "selinux").is_none());
    }
}
