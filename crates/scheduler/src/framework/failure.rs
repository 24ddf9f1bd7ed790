//! Why no node can take a pod, counted over the nodes and told in upstream's words.

use std::borrow::Cow;
use std::fmt;

use super::{Fit, Reasons};
use crate::events::Events;

/// Why no node can take a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failure {
    pub nodes: usize,
    /// What holds for every node, if it was found before any was looked at.
    pub everywhere: Option<Reasons>,
    pub counts: Vec<(Cow<'static, str>, usize)>,
    /// What the filters said of each node, by place.
    pub fits: Vec<Fit>,
    /// The plugins that refused, by place in the framework's list.
    pub plugins: u64,
    pub wakes_on: Events,
    /// What those who tried to help have to say.
    pub remedy: String,
}

impl Failure {
    pub fn count(&mut self, reasons: &Reasons, nodes: usize) {
        let all = match reasons {
            Reasons::One(one) => std::slice::from_ref(one),
            Reasons::More(more) => more,
        };
        for reason in all {
            match self.counts.iter_mut().find(|(known, _)| known == reason) {
                Some((_, count)) => *count += nodes,
                None => self.counts.push((reason.clone(), nodes)),
            }
        }
    }
}

/// `1 a, 2 b`, sorted as text.
fn histogram(counts: &[(Cow<'static, str>, usize)]) -> String {
    let mut parts: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort();
    parts.join(", ")
}

impl fmt::Display for Failure {
    /// As upstream says it: `0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu.`
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return out.write_str("no nodes available to schedule pods");
        }
        write!(out, "0/{} nodes are available:", self.nodes)?;
        match &self.everywhere {
            Some(reasons) => write!(out, " {reasons}.")?,
            None if self.counts.is_empty() => {}
            None => write!(out, " {}.", histogram(&self.counts))?,
        }
        if !self.remedy.is_empty() {
            write!(out, " {}", self.remedy)?;
        }
        Ok(())
    }
}
