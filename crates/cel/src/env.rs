//! What an expression may name: variables with their types, object types, libraries.

use crate::ast::Expr;
use crate::check::check;
use crate::constant;
use crate::issue::Issues;
use crate::parser::parse;
use crate::types::Type;

/// A set of declarations.
#[derive(Debug, Clone, Default)]
pub struct Env {
    variables: Vec<(String, Type)>,
    patches: bool,
}

/// A checked expression.
#[derive(Debug)]
pub struct Program {
    source: String,
    pub(crate) root: Expr,
    kind: Type,
}

impl Env {
    /// No variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a variable. The name may be qualified (`variables.a`). Its index is the number of those before it.
    #[must_use]
    pub fn with(mut self, name: &str, kind: Type) -> Self {
        self.declare(name, kind);
        self
    }

    /// Declares a variable and gives its index.
    pub fn declare(&mut self, name: &str, kind: Type) -> usize {
        self.variables.push((name.to_owned(), kind));
        self.variables.len() - 1
    }

    /// Allows `Object{}` and `JSONPatch{}`.
    #[must_use]
    pub fn with_patches(mut self) -> Self {
        self.patches = true;
        self
    }

    /// The index of a variable.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.variables.iter().position(|(own, _)| own == name)
    }

    pub(crate) fn variable(&self, name: &str) -> Option<(usize, Type)> {
        let index = self.index_of(name)?;
        Some((index, self.variables[index].1.clone()))
    }

    pub(crate) fn object_type(&self, name: &str) -> Option<Type> {
        if !self.patches {
            return None;
        }
        if name == "JSONPatch" {
            return Some(Type::object(
                "JSONPatch",
                &[("op", Type::String), ("path", Type::String), ("from", Type::String), ("value", Type::Dyn)],
            ));
        }
        (name == "Object" || name.starts_with("Object.")).then(|| Type::named(name))
    }

    /// Whether a function belongs to this environment.
    pub(crate) fn offers(&self, name: &str) -> bool {
        name != "jsonpatch.escapeKey" || self.patches
    }

    /// Parses and checks an expression.
    pub fn compile(&self, source: &str) -> Result<Program, Issues> {
        let mut root = parse(source).map_err(|issue| Issues::new(source, vec![issue]))?;
        let kind = check(&mut root, self).map_err(|issues| Issues::new(source, issues))?;
        constant::settle(&mut root);
        Ok(Program { source: source.to_owned(), root, kind })
    }

    /// Parses and checks an expression that has to give a value of exactly this type. The error is a sentence as the
    /// API server tells it.
    pub fn compile_as(&self, source: &str, wanted: &[Type]) -> Result<Program, String> {
        let program = self.compile(source).map_err(|issues| format!("compilation failed: {issues}"))?;
        if wanted.iter().any(|kind| *kind == program.kind || matches!(kind, Type::Dyn)) {
            return Ok(program);
        }
        Err(match wanted {
            [only] => format!("must evaluate to {only} but got {}", program.kind),
            many => {
                let names: Vec<String> = many.iter().map(Type::to_string).collect();
                format!("must evaluate to one of [{}] but got {}", names.join(" "), program.kind)
            }
        })
    }
}

impl Program {
    /// The type of what it gives.
    pub fn kind(&self) -> &Type {
        &self.kind
    }

    /// What was compiled.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The checked tree.
    pub fn root(&self) -> &Expr {
        &self.root
    }

    /// Whether it reads a variable.
    pub fn uses(&self, index: usize) -> bool {
        let mut found = false;
        self.root.walk(&mut |expr| {
            found |= matches!(expr.kind, crate::ast::Kind::Global(own) if own == index);
        });
        found
    }
}
