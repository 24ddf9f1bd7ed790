//! What of the metrics is shown: some not at all, some labels only with values that were named.
//!
//! Works on the text that Prometheus reads, so that no counter has to know of it.

use std::collections::{BTreeMap, BTreeSet};

/// What stands for a label's value that was not named.
const UNEXPECTED: &str = "unexpected";

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct MetricsFilter {
    /// Full names of metrics that are not shown.
    pub disabled: BTreeSet<String>,
    /// Values that a label may have, by metric and label.
    pub labels: BTreeMap<(String, String), BTreeSet<String>>,
}

impl MetricsFilter {
    /// Reads `metric,label='a,b'` into the values of a label.
    pub fn allow(&mut self, key: &str, values: &str) -> Result<(), String> {
        let wrong = || format!("{key:?} is not of the form metric,label");
        let (metric, label) = key.split_once(',').ok_or_else(wrong)?;
        if metric.trim().is_empty() || label.trim().is_empty() {
            return Err(wrong());
        }
        let values = values.trim_matches('\'').split(',').map(|one| one.trim().to_owned()).collect();
        self.labels.insert((metric.trim().to_owned(), label.trim().to_owned()), values);
        Ok(())
    }

    /// The text without what is not shown.
    pub fn apply(&self, text: String) -> String {
        if self.disabled.is_empty() && self.labels.is_empty() {
            return text;
        }
        let mut out = String::with_capacity(text.len());
        for line in text.lines().filter(|line| !self.hides(line)) {
            match line.split_once('{').filter(|_| !line.starts_with('#')) {
                Some((name, rest)) => {
                    let (labels, value) = rest.rsplit_once('}').unwrap_or((rest, ""));
                    out.push_str(&format!("{name}{{{}}}{value}\n", self.limit(name, labels)));
                }
                None => {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
        out
    }

    fn hides(&self, line: &str) -> bool {
        let name = match line.strip_prefix("# ") {
            Some(comment) => comment.split(' ').nth(1).unwrap_or_default(),
            None => family(line.split(['{', ' ']).next().unwrap_or_default()),
        };
        self.disabled.contains(name) || self.disabled.contains(family(name))
    }

    fn limit(&self, name: &str, labels: &str) -> String {
        let parts = labels.strip_suffix('"').unwrap_or(labels).split("\",");
        let shown = parts.filter_map(|part| part.split_once("=\"")).map(|(label, value)| {
            let known = [name, family(name)]
                .into_iter()
                .find_map(|metric| self.labels.get(&(metric.to_owned(), label.to_owned())));
            let good = known.is_none_or(|values| values.contains(value));
            format!("{label}=\"{}\"", if good { value } else { UNEXPECTED })
        });
        shown.collect::<Vec<_>>().join(",")
    }
}

/// The metric that a line of a histogram belongs to.
fn family(name: &str) -> &str {
    ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_and_values_are_hidden() {
        let text = "# HELP a x\n# TYPE a counter\na{code=\"200\",verb=\"GET\"} 1\na{code=\"500\",verb=\"\"} 2\n\
                    # HELP b x\n# TYPE b histogram\nb_bucket{le=\"1\"} 1\nb_count{} 1\nc 3\n";
        let mut filter = MetricsFilter::default();
        assert_eq!(filter.apply(text.to_owned()), text);
        filter.disabled.insert("b".to_owned());
        filter.allow("a,code", "'200,201'").unwrap();
        assert_eq!(
            filter.apply(text.to_owned()),
            "# HELP a x\n# TYPE a counter\na{code=\"200\",verb=\"GET\"} 1\na{code=\"unexpected\",verb=\"\"} 2\nc 3\n"
        );
        assert!(filter.allow("a", "b").is_err());
    }
}
