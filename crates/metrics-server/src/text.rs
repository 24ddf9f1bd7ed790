//! Reads what a kubelet serves under `/metrics/resource`: one reading of a node and its containers.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

/// One thing's use, at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// CPU seconds since the thing began, and when that was read.
    pub cpu: Option<(f64, Timestamp)>,
    /// Bytes that it cannot do without.
    pub memory: Option<f64>,
}

/// Namespace, pod and container.
pub type ContainerKey = (Box<str>, Box<str>, Box<str>);

/// All of a node, read at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// The node itself.
    pub node: Reading,
    /// Its containers.
    pub containers: HashMap<ContainerKey, Reading>,
}

/// Reads the text; lines of no interest, or without sense, are passed over. `now` stands for missing times.
pub fn parse(text: &str, now: Timestamp) -> Scrape {
    let mut scrape = Scrape::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels, value, at)) = sample(line, now) else { continue };
        let reading = if name.starts_with("node_") {
            &mut scrape.node
        } else if name.starts_with("container_") {
            let label =
                |wanted: &str| labels.iter().find(|(name, _)| *name == wanted).map(|(_, value)| &**value);
            let (Some(namespace), Some(pod), Some(container)) =
                (label("namespace"), label("pod"), label("container"))
            else {
                continue;
            };
            scrape.containers.entry((namespace.into(), pod.into(), container.into())).or_default()
        } else {
            continue;
        };
        match name {
            "node_cpu_usage_seconds_total" | "container_cpu_usage_seconds_total" => {
                reading.cpu = Some((value, at));
            }
            "node_memory_working_set_bytes" | "container_memory_working_set_bytes" => {
                reading.memory = Some(value);
            }
            _ => {}
        }
    }
    scrape
}

type Sample<'a> = (&'a str, Vec<(&'a str, String)>, f64, Timestamp);

/// `name{label="value",…} number milliseconds`.
fn sample(line: &str, now: Timestamp) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (Vec::new(), rest),
    };
    let mut words = rest.split_whitespace();
    let value: f64 = words.next()?.parse().ok()?;
    let at = match words.next() {
        Some(word) => Timestamp::from_millisecond(word.parse().ok()?).ok()?,
        None => now,
    };
    Some((name, labels, value, at))
}

/// The labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, letter) => value.push(letter),
            }
        };
        labels.push((name, value));
        rest = &quoted[end + 1..];
    }
}

/// Cores in use between two readings; nothing if they do not follow each other (the thing began anew, or no time passed).
pub fn cores(before: &Reading, after: &Reading) -> Option<(f64, SignedDuration)> {
    let ((first, from), (second, to)) = (before.cpu?, after.cpu?);
    let window = to.duration_since(from);
    if window <= SignedDuration::ZERO || second < first {
        return None;
    }
    Some(((second - first) / window.as_secs_f64(), window))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelets_text_is_read() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let scrape = parse(
            "# HELP node_cpu_usage_seconds_total x\n\
             node_cpu_usage_seconds_total 12.5 1767268800000\n\
             node_memory_working_set_bytes 1.048576e+06\n\
             container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 3 1767268800500\n\
             container_memory_working_set_bytes{container=\"c\\\"x\",namespace=\"n\",pod=\"p\"} 7 1\n\
             container_cpu_usage_seconds_total{container=\"c\" 3\nnonsense\nresource_scrape_error 0\n",
            now,
        );
        assert_eq!(scrape.node.cpu.map(|(value, _)| value), Some(12.5));
        assert_eq!(scrape.node.memory, Some(1_048_576.0));
        let at = scrape.containers[&("n".into(), "p".into(), "c".into())].cpu.unwrap();
        assert_eq!((at.0, at.1.as_millisecond()), (3.0, 1_767_268_800_500));
        assert_eq!(scrape.containers[&("n".into(), "p".into(), "c\"x".into())].memory, Some(7.0));
        assert_eq!(scrape.containers.len(), 2);
    }

    #[test]
    fn use_is_the_difference_over_time() {
        let at = |value: f64, millis: i64| Reading {
            cpu: Some((value, Timestamp::from_millisecond(millis).unwrap())),
            memory: None,
        };
        let (used, window) = cores(&at(1.0, 0), &at(2.0, 4000)).unwrap();
        assert_eq!((used, window.as_millis()), (0.25, 4000));
        assert_eq!(cores(&at(2.0, 0), &at(1.0, 4000)), None, "it began anew");
        assert_eq!(cores(&at(1.0, 4000), &at(2.0, 4000)), None, "no time passed");
    }
}
