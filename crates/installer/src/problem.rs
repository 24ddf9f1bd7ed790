//! What is wrong with an input: where, of which class, with which value, and what to do about it.

use std::fmt;

use serde::Serialize;

/// The kinds of fault, in the words that other installers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Class {
    /// A value has to be given.
    Required,
    /// The value breaks a rule.
    Invalid,
    /// The value is not one of a fixed set.
    Unsupported,
    /// The value must not be given here.
    Forbidden,
    /// The value stands elsewhere already.
    Duplicate,
    /// There is no such field.
    Unknown,
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Required => "Required value",
            Self::Invalid => "Invalid value",
            Self::Unsupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate value",
            Self::Unknown => "Unknown field",
        })
    }
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Field path, such as `networking.clusterNetwork[0].cidr`.
    pub path: String,
    /// Kind of fault.
    pub class: Class,
    /// The value found; secrets are never put here.
    pub value: String,
    /// What is wrong, and what would be right.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}: ", self.path, self.class)?;
        if !self.value.is_empty() {
            write!(out, "{:?}: ", self.value)?;
        }
        out.write_str(&self.remedy)
    }
}

/// Collects every fault and warning of one input.
#[derive(Debug, Clone, Default)]
pub struct Problems {
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Problems {
    /// Records a fault.
    pub fn add(
        &mut self,
        path: impl Into<String>,
        class: Class,
        value: impl ToString,
        remedy: impl Into<String>,
    ) {
        let problem = Problem { path: path.into(), class, value: value.to_string(), remedy: remedy.into() };
        if !self.errors.contains(&problem) {
            self.errors.push(problem);
        }
    }

    /// A value that has to be given.
    pub fn required(&mut self, path: impl Into<String>, remedy: impl Into<String>) {
        self.add(path, Class::Required, "", remedy);
    }

    /// A value that breaks a rule.
    pub fn invalid(&mut self, path: impl Into<String>, value: impl ToString, remedy: impl Into<String>) {
        self.add(path, Class::Invalid, value, remedy);
    }

    /// A value outside a fixed set.
    pub fn unsupported(&mut self, path: impl Into<String>, value: impl ToString, supported: &[&str]) {
        self.add(path, Class::Unsupported, value, format!("use one of: {}", supported.join(", ")));
    }

    /// A value that must not be given here.
    pub fn forbidden(&mut self, path: impl Into<String>, value: impl ToString, remedy: impl Into<String>) {
        self.add(path, Class::Forbidden, value, remedy);
    }

    /// A value that stands elsewhere already.
    pub fn duplicate(&mut self, path: impl Into<String>, value: impl ToString, remedy: impl Into<String>) {
        self.add(path, Class::Duplicate, value, remedy);
    }

    /// Something that works, perhaps not as meant.
    pub fn warn(&mut self, path: impl Into<String>, value: impl ToString, remedy: impl Into<String>) {
        self.warnings.push(Problem {
            path: path.into(),
            class: Class::Invalid,
            value: value.to_string(),
            remedy: remedy.into(),
        });
    }

    /// Whether nothing refuses the input.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// The faults, by path.
    pub fn into_sorted(mut self) -> (Vec<Problem>, Vec<Problem>) {
        self.errors.sort_by(|a, b| (&a.path, a.class).cmp(&(&b.path, b.class)));
        self.warnings.sort_by(|a, b| a.path.cmp(&b.path));
        (self.errors, self.warnings)
    }
}
