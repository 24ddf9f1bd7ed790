//! Runs a template's tree over an object.

use serde_json::Value;

use super::functions::{self, Val};
use super::parse::{Node, Pipe, Place, Term};
use super::{Template, TemplateError};

const MAX_STEPS: usize = 5_000_000;
const MAX_OUTPUT: usize = 256 << 20;
const MAX_CALLS: usize = 200;

pub fn run(template: &Template, data: &Value) -> Result<String, TemplateError> {
    let root = Val::Json(data.clone());
    let mut run = Run {
        template,
        out: String::new(),
        variables: vec![(String::new(), root.clone())],
        steps: 0,
        calls: 0,
    };
    run.nodes(&template.body, &root)?;
    Ok(run.out)
}

struct Run<'a> {
    template: &'a Template,
    out: String,
    variables: Vec<(String, Val)>,
    steps: usize,
    calls: usize,
}

#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl Run<'_> {
    fn nodes(&mut self, nodes: &[Node], dot: &Val) -> Result<Flow, TemplateError> {
        for node in nodes {
            self.steps += 1;
            if self.steps > MAX_STEPS || self.out.len() > MAX_OUTPUT {
                return Err(TemplateError::Limit("the template does too much"));
            }
            match node {
                Node::Text(text) => self.out.push_str(text),
                Node::Action(pipe) => {
                    let value = self.pipe(pipe, dot)?;
                    if pipe.variables.is_empty() {
                        self.out.push_str(&value.shown());
                    }
                }
                Node::If(pipe, body, otherwise) => {
                    let mark = self.variables.len();
                    let branch = if self.pipe(pipe, dot)?.is_true() { body } else { otherwise };
                    let flow = self.nodes(branch, dot)?;
                    self.variables.truncate(mark);
                    if flow != Flow::On {
                        return Ok(flow);
                    }
                }
                Node::With(pipe, body, otherwise) => {
                    let mark = self.variables.len();
                    let value = self.pipe(pipe, dot)?;
                    let flow =
                        if value.is_true() { self.nodes(body, &value)? } else { self.nodes(otherwise, dot)? };
                    self.variables.truncate(mark);
                    if flow != Flow::On {
                        return Ok(flow);
                    }
                }
                Node::Range(pipe, body, otherwise) => self.range(pipe, body, otherwise, dot)?,
                Node::Template(name, argument, place) => {
                    let template = self.template;
                    let Some(body) = template.defined.get(name) else {
                        return Err(error(place, format!("template {name:?} not defined")));
                    };
                    let value = match argument {
                        Some(pipe) => self.pipe(pipe, dot)?,
                        None => Val::Nothing,
                    };
                    self.calls += 1;
                    if self.calls > MAX_CALLS {
                        return Err(TemplateError::Limit("exceeded maximum template depth"));
                    }
                    let outer = std::mem::replace(&mut self.variables, vec![(String::new(), value.clone())]);
                    self.nodes(body, &value)?;
                    self.variables = outer;
                    self.calls -= 1;
                }
                Node::Break => return Ok(Flow::Break),
                Node::Continue => return Ok(Flow::Continue),
            }
        }
        Ok(Flow::On)
    }

    fn range(
        &mut self,
        pipe: &Pipe,
        body: &[Node],
        otherwise: &[Node],
        dot: &Val,
    ) -> Result<(), TemplateError> {
        let mark = self.variables.len();
        let value = self.commands(pipe, dot)?;
        let entries: Box<dyn Iterator<Item = (Val, Val)>> = match value {
            Val::Json(Value::Array(items)) => Box::new(
                items.into_iter().enumerate().map(|(index, item)| (Val::Int(index as i64), Val::Json(item))),
            ),
            Val::Json(Value::Object(map)) => {
                let mut fields: Vec<(String, Value)> = map.into_iter().collect();
                fields.sort_by(|a, b| a.0.cmp(&b.0));
                Box::new(fields.into_iter().map(|(name, item)| (Val::text(name), Val::Json(item))))
            }
            Val::Int(count) => Box::new((0..count).map(|index| (Val::Int(index), Val::Int(index)))),
            Val::Nothing | Val::Json(Value::Null) => Box::new(std::iter::empty()),
            other => return Err(error(&pipe.place, format!("range can't iterate over {}", other.shown()))),
        };
        let mut any = false;
        for (key, item) in entries {
            any = true;
            self.variables.truncate(mark);
            match &pipe.variables[..] {
                [one] => self.set(one, item.clone(), pipe)?,
                [first, second] => {
                    self.set(first, key, pipe)?;
                    self.set(second, item.clone(), pipe)?;
                }
                _ => {}
            }
            if self.nodes(body, &item)? == Flow::Break {
                break;
            }
        }
        self.variables.truncate(mark);
        if !any {
            self.nodes(otherwise, dot)?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Val, pipe: &Pipe) -> Result<(), TemplateError> {
        if pipe.declares {
            self.variables.push((name.to_owned(), value));
            return Ok(());
        }
        match self.variables.iter_mut().rev().find(|(known, _)| known == name) {
            Some((_, slot)) => *slot = value,
            None => return Err(error(&pipe.place, format!("undefined variable: ${name}"))),
        }
        Ok(())
    }

    fn pipe(&mut self, pipe: &Pipe, dot: &Val) -> Result<Val, TemplateError> {
        let value = self.commands(pipe, dot)?;
        if let [name] = &pipe.variables[..] {
            self.set(name, value.clone(), pipe)?;
        }
        Ok(value)
    }

    fn commands(&mut self, pipe: &Pipe, dot: &Val) -> Result<Val, TemplateError> {
        let mut last: Option<Val> = None;
        for command in &pipe.commands {
            last = Some(self.command(command, last, dot, &pipe.place)?);
        }
        Ok(last.unwrap_or(Val::Nothing))
    }

    fn command(
        &mut self,
        terms: &[Term],
        last: Option<Val>,
        dot: &Val,
        place: &Place,
    ) -> Result<Val, TemplateError> {
        let Some((first, rest)) = terms.split_first() else { return Ok(Val::Nothing) };
        if let Term::Function(name) = first {
            // These two look at their arguments one by one and stop when they know.
            if name == "and" || name == "or" {
                let mut value = Val::Nothing;
                for term in rest {
                    value = self.term(term, dot, place)?;
                    if value.is_true() == (name == "or") {
                        return Ok(value);
                    }
                }
                return Ok(last.unwrap_or(value));
            }
            let mut arguments = Vec::with_capacity(rest.len() + 1);
            for term in rest {
                arguments.push(self.term(term, dot, place)?);
            }
            arguments.extend(last);
            return functions::call(name, &arguments)
                .map_err(|reason| error(place, format!("error calling {name}: {reason}")));
        }
        if !rest.is_empty() || last.is_some() {
            return Err(error(place, "can't give argument to non-function".to_owned()));
        }
        self.term(first, dot, place)
    }

    fn term(&mut self, term: &Term, dot: &Val, place: &Place) -> Result<Val, TemplateError> {
        Ok(match term {
            Term::Dot => dot.clone(),
            Term::Nil => Val::Nothing,
            Term::Field(names) => self.fields(dot.clone(), names, place)?,
            Term::Variable(name, names) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                let value = known
                    .map(|(_, value)| value.clone())
                    .ok_or_else(|| error(place, format!("undefined variable: ${name}")))?;
                self.fields(value, names, place)?
            }
            Term::Function(name) => functions::call(name, &[])
                .map_err(|reason| error(place, format!("error calling {name}: {reason}")))?,
            Term::Text(text) => Val::text(text.clone()),
            Term::Int(number) => Val::Int(*number),
            Term::Float(number) => Val::Json((*number).into()),
            Term::Bool(value) => Val::Json((*value).into()),
            Term::Paren(pipe, names) => {
                let value = self.pipe(pipe, dot)?;
                self.fields(value, names, place)?
            }
        })
    }

    fn fields(&self, mut value: Val, names: &[String], place: &Place) -> Result<Val, TemplateError> {
        for (index, name) in names.iter().enumerate() {
            value = match value {
                Val::Json(Value::Object(mut map)) => match map.shift_remove(name) {
                    Some(inner) => Val::Json(inner),
                    None if self.template.strict => {
                        return Err(error(place, format!("map has no entry for key {name:?}")));
                    }
                    None => Val::Nothing,
                },
                Val::Nothing | Val::Json(Value::Null) => {
                    if index > 0 {
                        return Err(error(place, format!("nil pointer evaluating interface {{}}.{name}")));
                    }
                    Val::Nothing
                }
                other => {
                    return Err(error(
                        place,
                        format!("can't evaluate field {name} in type {}", other.type_name()),
                    ));
                }
            };
        }
        Ok(value)
    }
}

fn error(place: &Place, reason: String) -> TemplateError {
    TemplateError::Run { line: place.line, column: place.column, action: place.text.clone(), reason }
}
