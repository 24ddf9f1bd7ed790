//! Tokens to expressions, by recursive descent. Macros are recognised here and become nodes of their own.
//!
//! Nesting is bounded: every way of going deeper passes [`Parser::deeper`], so no input can exhaust the stack here,
//! in the checker or in the evaluator. Chains of `&&` and `||` are one flat node.

use crate::ast::{Element, Expr, Fold, Kind, Literal};
use crate::issue::Issue;
use crate::lexer::{Token, tokens};

/// Expressions nest at most this deep.
const DEPTH: usize = 100;
/// Longer sources are refused.
const LENGTH: usize = 100_000;

const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether a word cannot be a name.
pub fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word) || matches!(word, "true" | "false" | "null" | "in")
}

/// Whether a text is a name that expressions may use for a variable.
pub fn is_identifier(text: &str) -> bool {
    let mut letters = text.bytes();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
        && !is_reserved(text)
}

/// Parses a source.
pub fn parse(source: &str) -> Result<Expr, Issue> {
    if source.len() > LENGTH {
        return Err(Issue::new(0, format!("expression is longer than {LENGTH} bytes")));
    }
    let mut parser = Parser { tokens: tokens(source)?, at: 0, depth: 0 };
    let expr = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(expr),
        other => Err(parser.unexpected(&other.clone(), "<EOF>")),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    depth: usize,
}

type Parsed = Result<Expr, Issue>;

fn call(at: usize, name: &str, args: Vec<Expr>) -> Expr {
    Expr::new(at, Kind::Call { name: name.to_owned(), member: false, args, function: None })
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].1
    }

    fn place(&self) -> usize {
        self.tokens[self.at].0
    }

    fn bump(&mut self) -> Token {
        let token = self.tokens[self.at].1.clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn take(&mut self, mark: &str) -> bool {
        let found = matches!(self.peek(), Token::Mark(own) if *own == mark);
        if found {
            self.bump();
        }
        found
    }

    fn expect(&mut self, mark: &str) -> Result<(), Issue> {
        if self.take(mark) {
            return Ok(());
        }
        Err(self.unexpected(&self.peek().clone(), mark))
    }

    fn unexpected(&self, token: &Token, wanted: &str) -> Issue {
        let shown = match token {
            Token::Name(text) => text.clone(),
            Token::Int(value) | Token::Uint(value) => value.to_string(),
            Token::Double(value) => value.to_string(),
            Token::Text(text) => format!("{text:?}"),
            Token::Bytes(_) => "bytes".to_owned(),
            Token::Mark(mark) => (*mark).to_owned(),
            Token::End => "<EOF>".to_owned(),
        };
        // One word too many is told as such.
        let last = self.tokens.get(self.at + 1).is_some_and(|(_, next)| matches!(next, Token::End));
        let word = if wanted == "<EOF>" && last { "extraneous" } else { "mismatched" };
        Issue::new(self.place(), format!("Syntax error: {word} input '{shown}' expecting {wanted}"))
    }

    /// Everything that nests goes through here.
    fn deeper(&mut self, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        if self.depth >= DEPTH {
            return Err(Issue::new(self.place(), format!("expression recursion limit exceeded: {DEPTH}")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn expression(&mut self) -> Parsed {
        self.deeper(|parser| {
            let condition = parser.or()?;
            let at = parser.place();
            if !parser.take("?") {
                return Ok(condition);
            }
            let yes = parser.or()?;
            parser.expect(":")?;
            let no = parser.expression()?;
            Ok(Expr::new(at, Kind::If(Box::new([condition, yes, no]))))
        })
    }

    fn or(&mut self) -> Parsed {
        self.chain("||", Self::and, Kind::Or)
    }

    fn and(&mut self) -> Parsed {
        self.chain("&&", Self::relation, Kind::And)
    }

    fn chain(&mut self, mark: &str, part: fn(&mut Self) -> Parsed, make: fn(Vec<Expr>) -> Kind) -> Parsed {
        let first = part(self)?;
        let at = self.place();
        if !self.take(mark) {
            return Ok(first);
        }
        let mut parts = vec![first, part(self)?];
        while self.take(mark) {
            parts.push(part(self)?);
        }
        Ok(Expr::new(at, make(parts)))
    }

    fn relation(&mut self) -> Parsed {
        self.left(Self::sum, &["<", "<=", ">", ">=", "==", "!=", "in"])
    }

    fn sum(&mut self) -> Parsed {
        self.left(Self::product, &["+", "-"])
    }

    fn product(&mut self) -> Parsed {
        self.left(Self::unary, &["*", "/", "%"])
    }

    /// Operators that group to the left.
    fn left(&mut self, part: fn(&mut Self) -> Parsed, marks: &[&str]) -> Parsed {
        let mut left = part(self)?;
        let depth = self.depth;
        loop {
            let mark = match self.peek() {
                Token::Mark(mark) if marks.contains(mark) => (*mark).to_owned(),
                Token::Name(word) if word == "in" && marks.contains(&"in") => "in".to_owned(),
                _ => break,
            };
            let at = self.place();
            self.bump();
            // The tree leans left: each operator makes it one deeper.
            self.depth += 1;
            if self.depth > 2 * DEPTH {
                return Err(Issue::new(at, format!("expression recursion limit exceeded: {DEPTH}")));
            }
            let right = part(self)?;
            let name = if mark == "in" { "@in".to_owned() } else { format!("_{mark}_") };
            left = call(at, &name, vec![left, right]);
        }
        self.depth = depth;
        Ok(left)
    }

    fn unary(&mut self) -> Parsed {
        let at = self.place();
        if self.take("!") {
            let operand = self.deeper(Self::unary)?;
            return Ok(call(at, "!_", vec![operand]));
        }
        if self.take("-") {
            match self.peek().clone() {
                Token::Int(value) if value <= 1 << 63 => {
                    self.bump();
                    let literal = Expr::new(at, Kind::Literal(Literal::Int((value as i64).wrapping_neg())));
                    return self.member(literal);
                }
                Token::Double(value) => {
                    self.bump();
                    return self.member(Expr::new(at, Kind::Literal(Literal::Double(-value))));
                }
                _ => {}
            }
            let operand = self.deeper(Self::unary)?;
            return Ok(call(at, "-_", vec![operand]));
        }
        let primary = self.primary()?;
        self.member(primary)
    }

    fn name(&mut self) -> Result<String, Issue> {
        match self.peek().clone() {
            Token::Name(name) if !matches!(name.as_str(), "true" | "false" | "null" | "in") => {
                self.bump();
                Ok(name)
            }
            other => Err(self.unexpected(&other, "IDENTIFIER")),
        }
    }

    fn member(&mut self, first: Expr) -> Parsed {
        let mut expr = first;
        let depth = self.depth;
        loop {
            let at = self.place();
            self.depth += 1;
            if self.depth > 2 * DEPTH {
                return Err(Issue::new(at, format!("expression recursion limit exceeded: {DEPTH}")));
            }
            if self.take(".") {
                let optional = self.take("?");
                let field = self.name()?;
                let open = self.place();
                if !optional && self.take("(") {
                    let args = self.arguments(")")?;
                    expr = member_call(open, expr, field, args)?;
                } else {
                    let operand = Box::new(expr);
                    expr = Expr::new(at, Kind::Select { operand, field, test: false, optional });
                }
            } else if self.take("[") {
                let optional = self.take("?");
                let key = Box::new(self.expression()?);
                self.expect("]")?;
                expr = Expr::new(at, Kind::Index { operand: Box::new(expr), key, optional });
            } else if matches!(self.peek(), Token::Mark("{")) && qualified(&expr).is_some() {
                let name = qualified(&expr).unwrap_or_default();
                self.bump();
                expr = self.object(at, name)?;
            } else {
                self.depth = depth;
                return Ok(expr);
            }
        }
    }

    fn arguments(&mut self, close: &str) -> Result<Vec<Expr>, Issue> {
        let mut args = Vec::new();
        if self.take(close) {
            return Ok(args);
        }
        loop {
            args.push(self.expression()?);
            if !self.take(",") {
                self.expect(close)?;
                return Ok(args);
            }
        }
    }

    fn object(&mut self, at: usize, name: String) -> Parsed {
        let mut fields = Vec::new();
        while !self.take("}") {
            let optional = self.take("?");
            let key = self.name()?;
            self.expect(":")?;
            let value = self.expression()?;
            fields.push(Element { key, value, optional });
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr::new(at, Kind::Object { name, fields }))
    }

    fn primary(&mut self) -> Parsed {
        let at = self.place();
        let literal = |literal| Ok(Expr::new(at, Kind::Literal(literal)));
        match self.bump() {
            Token::Int(value) => match i64::try_from(value) {
                Ok(value) => literal(Literal::Int(value)),
                Err(_) => Err(Issue::new(at, "invalid int literal")),
            },
            Token::Uint(value) => literal(Literal::Uint(value)),
            Token::Double(value) => literal(Literal::Double(value)),
            Token::Text(text) => literal(Literal::Text(text)),
            Token::Bytes(bytes) => literal(Literal::Bytes(bytes)),
            Token::Name(word) if word == "true" => literal(Literal::Bool(true)),
            Token::Name(word) if word == "false" => literal(Literal::Bool(false)),
            Token::Name(word) if word == "null" => literal(Literal::Null),
            Token::Mark("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Mark("[") => self.list(at),
            Token::Mark("{") => self.map(at),
            Token::Mark(".") => {
                let name = self.name()?;
                self.name_or_call(at, name)
            }
            Token::Name(name) if name != "in" => self.name_or_call(at, name),
            other => {
                self.at = self.tokens.iter().position(|(place, _)| *place == at).unwrap_or(self.at);
                Err(self.unexpected(&other, "an expression"))
            }
        }
    }

    fn name_or_call(&mut self, at: usize, name: String) -> Parsed {
        let open = self.place();
        if self.take("(") {
            let args = self.arguments(")")?;
            return global_call(open, name, args);
        }
        if RESERVED.contains(&name.as_str()) {
            return Err(Issue::new(at, format!("reserved identifier: {name}")));
        }
        Ok(Expr::new(at, Kind::Name(name)))
    }

    fn list(&mut self, at: usize) -> Parsed {
        let mut items = Vec::new();
        while !self.take("]") {
            let optional = self.take("?");
            let value = self.expression()?;
            items.push(Element { key: (), value, optional });
            if !self.take(",") {
                self.expect("]")?;
                break;
            }
        }
        Ok(Expr::new(at, Kind::List(items)))
    }

    fn map(&mut self, at: usize) -> Parsed {
        let mut items = Vec::new();
        while !self.take("}") {
            let optional = self.take("?");
            let key = self.expression()?;
            self.expect(":")?;
            let value = self.expression()?;
            items.push(Element { key, value, optional });
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr::new(at, Kind::Map(items)))
    }
}

/// `a.b.c`, if the expression is only that.
pub fn qualified(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Name(name) => Some(name.clone()),
        Kind::Select { operand, field, test: false, optional: false } => {
            Some(format!("{}.{field}", qualified(operand)?))
        }
        _ => None,
    }
}

fn global_call(at: usize, name: String, args: Vec<Expr>) -> Parsed {
    if name == "has" {
        let [arg] = args.as_slice() else {
            return Ok(call(at, &name, args));
        };
        return match arg.kind.clone() {
            Kind::Select { operand, field, test: false, optional: false } => {
                Ok(Expr::new(at, Kind::Select { operand, field, test: true, optional: false }))
            }
            _ => Err(Issue::new(at, "invalid argument to has() macro")),
        };
    }
    Ok(call(at, &name, args))
}

/// The name of a variable that a macro introduces.
fn variable(expr: &Expr) -> Result<String, Issue> {
    match &expr.kind {
        Kind::Name(name) => Ok(name.clone()),
        _ => Err(Issue::new(expr.at as usize, "argument must be a simple name")),
    }
}

fn member_call(at: usize, target: Expr, name: String, mut args: Vec<Expr>) -> Parsed {
    if let Kind::Name(namespace) = &target.kind
        && namespace == "cel"
        && name == "bind"
        && args.len() == 3
    {
        let body = Box::new(args.remove(2));
        let value = Box::new(args.remove(1));
        return Ok(Expr::new(at, Kind::Bind { name: variable(&args[0])?, value, body }));
    }
    let is_name =
        |index: usize, args: &[Expr]| matches!(args.get(index), Some(Expr { kind: Kind::Name(_), .. }));
    let fold = match (name.as_str(), args.len()) {
        ("all", 2 | 3) => Some(Fold::All),
        ("exists", 2 | 3) => Some(Fold::Exists),
        ("exists_one", 2) | ("existsOne", 2 | 3) => Some(Fold::ExistsOne),
        ("map", 2 | 3) => Some(Fold::Map),
        ("filter", 2) => Some(Fold::Filter),
        ("sortBy", 2) => Some(Fold::SortBy),
        ("transformList", 3 | 4) => Some(Fold::TransformList),
        ("transformMap", 3 | 4) => Some(Fold::TransformMap),
        ("transformMapEntry", 3 | 4) => Some(Fold::TransformMapEntry),
        _ => None,
    };
    if let Some(fold) = fold {
        let with_filter = matches!(fold, Fold::Map) && args.len() == 3 || args.len() == 4;
        let body = Box::new(args.pop().unwrap_or_else(|| target.clone()));
        let filter = if with_filter { args.pop().map(Box::new) } else { None };
        let variables = args.iter().map(variable).collect::<Result<Vec<String>, Issue>>()?;
        if variables.len() == 2 && variables[0] == variables[1] {
            return Err(Issue::new(at, "duplicate variable name"));
        }
        let range = Box::new(target);
        return Ok(Expr::new(at, Kind::Fold { fold, range, variables, filter, body }));
    }
    if matches!(name.as_str(), "optMap" | "optFlatMap") && args.len() == 2 && is_name(0, &args) {
        let flat = name == "optFlatMap";
        let body = Box::new(args.remove(1));
        let name = variable(&args[0])?;
        return Ok(Expr::new(at, Kind::OptionalMap { operand: Box::new(target), name, body, flat }));
    }
    args.insert(0, target);
    Ok(Expr::new(at, Kind::Call { name, member: true, args, function: None }))
}
