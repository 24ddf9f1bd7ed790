//! The flags that set fields of the configuration: one per row of [`super::fields`], read into a configuration of their own
//! that goes over the file's.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Number, Value, json};

use super::fields::{FIELDS, Field, Rule, Shape};

/// What the command line says of the configuration: an object like the file's, with the given fields only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigurationFlags(pub Value);

/// Several flags say the same in other words; upstream keeps both.
fn flags() -> impl Iterator<Item = &'static Field> {
    FIELDS.iter().filter(|field| !field.flag.is_empty())
}

impl clap::Args for ConfigurationFlags {
    fn augment_args(command: Command) -> Command {
        command.args(flags().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(field: &'static Field) -> Arg {
    let help = match field.rule {
        Rule::Acts => format!("{} of the configuration", field.path),
        Rule::Taken(why) => format!("{} of the configuration; taken for compatibility: {why}", field.path),
        Rule::Only(_, why) => format!("{} of the configuration; as it is here: {why}", field.path),
    };
    let argument = Arg::new(field.flag)
        .long(field.flag)
        .help(help)
        .help_heading("Configuration")
        .value_name(value_name(field.shape))
        .allow_hyphen_values(field.shape == Shape::Number);
    match field.shape {
        Shape::Bool => argument.action(ArgAction::Set).num_args(0..=1).default_missing_value("true"),
        // Lists may be given in several flags.
        Shape::List | Shape::Map | Shape::Switches | Shape::Thresholds | Shape::Taints => {
            argument.action(ArgAction::Append)
        }
        _ => argument.action(ArgAction::Set),
    }
}

fn value_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Text | Shape::Structure => "TEXT",
        Shape::Number => "NUMBER",
        Shape::Bool => "BOOL",
        Shape::Duration => "DURATION",
        Shape::Quantity => "QUANTITY",
        Shape::List => "A,B",
        Shape::Map => "KEY=VALUE,...",
        Shape::Switches => "NAME=BOOL,...",
        Shape::Thresholds => "SIGNAL<QUANTITY,...",
        Shape::Taints => "KEY=VALUE:EFFECT,...",
    }
}

impl clap::FromArgMatches for ConfigurationFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self(json!({}));
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for field in flags() {
            let Some(values) = matches.get_many::<String>(field.flag) else { continue };
            let values: Vec<&str> = values.map(String::as_str).collect();
            let bad = |why: String| {
                let text = format!("invalid value for '--{}': {why}\n", field.flag);
                clap::Error::raw(clap::error::ErrorKind::InvalidValue, text)
            };
            let value = parse(field.shape, &values).map_err(bad)?;
            super::configuration::judge(field, &value).map_err(bad)?;
            put(&mut self.0, field.path, value);
        }
        Ok(())
    }
}

/// Puts a value where the path says.
fn put(target: &mut Value, path: &str, value: Value) {
    let mut place = target;
    for part in path.split('.') {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[part];
    }
    *place = value;
}

/// The text of a flag as the file would have it.
fn parse(shape: Shape, values: &[&str]) -> Result<Value, String> {
    let last = values.last().copied().unwrap_or_default();
    let parts = || values.iter().flat_map(|value| value.split(',')).filter(|part| !part.is_empty());
    let pairs = |separator: char| {
        parts()
            .map(|part| {
                let (name, value) =
                    part.split_once(separator).ok_or_else(|| format!("{part:?} has no {separator:?}"))?;
                Ok((name.trim().to_owned(), json!(value.trim())))
            })
            .collect::<Result<Map<String, Value>, String>>()
    };
    Ok(match shape {
        Shape::Text | Shape::Duration | Shape::Quantity | Shape::Structure => json!(last),
        Shape::Number => {
            let number: Number = last.parse().map_err(|_| format!("{last:?} is not a number"))?;
            Value::Number(number)
        }
        Shape::Bool => match last {
            "true" | "1" | "t" | "T" | "TRUE" | "True" => json!(true),
            "false" | "0" | "f" | "F" | "FALSE" | "False" => json!(false),
            other => return Err(format!("{other:?} is neither true nor false")),
        },
        Shape::List => parts().collect::<Vec<&str>>().into(),
        Shape::Map => Value::Object(pairs('=')?),
        Shape::Thresholds => Value::Object(pairs('<')?),
        Shape::Switches => {
            let mut switches = pairs('=')?;
            for value in switches.values_mut() {
                *value = parse(Shape::Bool, &[value.as_str().unwrap_or_default()])?;
            }
            Value::Object(switches)
        }
        Shape::Taints => parts().map(taint).collect::<Result<Vec<Value>, String>>()?.into(),
    })
}

fn taint(text: &str) -> Result<Value, String> {
    let bad = || format!("{text:?} is not of the form key=value:effect");
    let (head, effect) = text.rsplit_once(':').ok_or_else(bad)?;
    let (key, value) = head.split_once('=').unwrap_or((head, ""));
    Ok(json!({"key": key, "value": value, "effect": effect}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_the_configuration_that_a_file_would_be() {
        assert_eq!(parse(Shape::Map, &["cpu=200m,memory=1Gi"]), Ok(json!({"cpu": "200m", "memory": "1Gi"})));
        assert_eq!(
            parse(Shape::Thresholds, &["memory.available<1Gi", "nodefs.available<5%"]),
            Ok(json!({"memory.available": "1Gi", "nodefs.available": "5%"}))
        );
        assert_eq!(
            parse(Shape::Taints, &["a=b:NoSchedule,c:NoExecute"]),
            Ok(json!([
                {"key": "a", "value": "b", "effect": "NoSchedule"},
                {"key": "c", "value": "", "effect": "NoExecute"},
            ]))
        );
        assert_eq!(parse(Shape::List, &[""]), Ok(json!([])));
        assert_eq!(parse(Shape::Number, &["-1"]), Ok(json!(-1)));
        assert!(parse(Shape::Taints, &["a=b"]).is_err() && parse(Shape::Map, &["a"]).is_err());
        let mut value = json!({});
        put(&mut value, "a.b.c", json!(1));
        put(&mut value, "a.d", json!(2));
        assert_eq!(value, json!({"a": {"b": {"c": 1}, "d": 2}}));
    }
}
