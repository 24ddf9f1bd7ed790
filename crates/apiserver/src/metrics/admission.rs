//! What admission does: webhooks, policies and their expressions, pod security.

use std::time::Duration;

use super::family::{Counters, Histograms};
use super::histogram::{Histogram, POLICY_SECONDS, SHORT_SECONDS, WEBHOOK_SECONDS};
use super::page::Page;

/// How a webhook's turn ended.
pub enum Outcome {
    /// It said yes.
    Allowed,
    /// It said no, with this code.
    Denied(u16),
    /// It could not be asked, or said nothing that can be understood; whether that refuses the request.
    Failed { refuses: bool },
}

/// What could not be reached is counted under this code, as upstream does.
const NOT_REACHED: u16 = 503;

/// See the module.
pub struct AdmissionMetrics {
    webhook_seconds: Histograms<4>,
    webhook_requests: Counters<5>,
    webhook_rejections: Counters<5>,
    webhooks_passed_over: Counters<2>,
    validating_checks: Counters<4>,
    validating_seconds: Histograms<4>,
    mutating_checks: Counters<3>,
    mutating_seconds: Histograms<3>,
    /// The expressions of a policy or webhook.
    pub compilation: Histogram,
    /// A policy's or webhook's conditions or rules.
    pub evaluation: Histogram,
    /// Decision, mode, level, version, operation, resource and subresource.
    pub pod_security: Counters<7>,
    /// Operation, resource and subresource.
    pub pod_exemptions: Counters<3>,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        Self {
            webhook_seconds: Histograms::histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "How long admission webhooks took.",
                ["name", "operation", "rejected", "type"],
                WEBHOOK_SECONDS,
            ),
            webhook_requests: Counters::counters(
                "apiserver_admission_webhook_request_total",
                "What admission webhooks were asked, by what became of it.",
                ["code", "name", "operation", "rejected", "type"],
            ),
            webhook_rejections: Counters::counters(
                "apiserver_admission_webhook_rejection_count",
                "Requests refused because of an admission webhook, by why.",
                ["error_type", "name", "operation", "rejection_code", "type"],
            ),
            webhooks_passed_over: Counters::counters(
                "apiserver_admission_webhook_fail_open_count",
                "Admission webhooks that were passed over because they could not be asked.",
                ["name", "type"],
            ),
            validating_checks: Counters::counters(
                "apiserver_validating_admission_policy_check_total",
                "What validating policies found fault with, by what was done.",
                ["enforcement_action", "error_type", "policy", "policy_binding"],
            ),
            validating_seconds: Histograms::histograms(
                "apiserver_validating_admission_policy_check_duration_seconds",
                "How long those expressions took.",
                ["enforcement_action", "error_type", "policy", "policy_binding"],
                POLICY_SECONDS,
            ),
            mutating_checks: Counters::counters(
                "apiserver_mutating_admission_policy_check_total",
                "What mutating policies were run for.",
                ["error_type", "policy", "policy_binding"],
            ),
            mutating_seconds: Histograms::histograms(
                "apiserver_mutating_admission_policy_check_duration_seconds",
                "How long mutating policies took.",
                ["error_type", "policy", "policy_binding"],
                POLICY_SECONDS,
            ),
            compilation: Histogram::new(SHORT_SECONDS),
            evaluation: Histogram::new(SHORT_SECONDS),
            pod_security: Counters::counters(
                "pod_security_evaluations_total",
                "Pods and pod templates that were judged.",
                [
                    "decision",
                    "mode",
                    "policy_level",
                    "policy_version",
                    "request_operation",
                    "resource",
                    "subresource",
                ],
            ),
            pod_exemptions: Counters::counters(
                "pod_security_exemptions_total",
                "Pods and pod templates that were not judged.",
                ["request_operation", "resource", "subresource"],
            ),
        }
    }
}

impl AdmissionMetrics {
    /// A webhook was asked. `side` is `admit` or `validating`.
    pub fn webhook(&self, name: &str, side: &str, operation: &str, outcome: Outcome, took: Duration) {
        let (code, refused, why) = match outcome {
            Outcome::Allowed => (200, false, ""),
            Outcome::Denied(code) => (code, true, "no_error"),
            Outcome::Failed { refuses } => (NOT_REACHED, refuses, "calling_webhook_error"),
        };
        let (code, rejected) = (code.to_string(), if refused { "true" } else { "false" });
        self.webhook_seconds.time([name, operation, rejected, side], took);
        self.webhook_requests.count([&code, name, operation, rejected, side]);
        if refused {
            self.webhook_rejections.count([why, name, operation, &code, side]);
        } else if !why.is_empty() {
            self.webhooks_passed_over.count([name, side]);
        }
    }

    /// A validating policy found fault, or could not be judged; `action` is what was done.
    pub fn validating(&self, policy: &str, binding: &str, action: &str, why: &str, took: Duration) {
        self.validating_checks.count([action, why, policy, binding]);
        self.validating_seconds.time([action, why, policy, binding], took);
    }

    /// A mutating policy was run.
    pub fn mutating(&self, policy: &str, binding: &str, why: &str, took: Duration) {
        self.mutating_checks.count([why, policy, binding]);
        self.mutating_seconds.time([why, policy, binding], took);
    }

    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        self.webhook_seconds.print(page);
        self.webhook_requests.print(page);
        self.webhook_rejections.print(page);
        self.webhooks_passed_over.print(page);
        self.validating_checks.print(page);
        self.validating_seconds.print(page);
        self.mutating_checks.print(page);
        self.mutating_seconds.print(page);
        for (name, help, histogram) in [
            (
                "apiserver_cel_compilation_duration_seconds",
                "Compiling the expressions of an admission policy or webhook.",
                &self.compilation,
            ),
            (
                "apiserver_cel_evaluation_duration_seconds",
                "Evaluating the conditions or the rules of an admission policy or webhook.",
                &self.evaluation,
            ),
        ] {
            page.head(name, "histogram", help);
            histogram.print(page, name, "");
        }
        self.pod_security.print(page);
        self.pod_exemptions.print(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_counted_by_what_became_of_them() {
        let own = AdmissionMetrics::default();
        let took = Duration::from_millis(3);
        own.webhook("w", "admit", "CREATE", Outcome::Allowed, took);
        own.webhook("w", "admit", "CREATE", Outcome::Denied(403), took);
        own.webhook("w", "validating", "CREATE", Outcome::Failed { refuses: true }, took);
        own.webhook("w", "validating", "CREATE", Outcome::Failed { refuses: false }, took);
        let mut page = Page::default();
        own.print(&mut page);
        for line in [
            "duration_seconds_count{name=\"w\",operation=\"CREATE\",rejected=\"true\",type=\"admit\"} 1",
            "request_total{code=\"200\",name=\"w\",operation=\"CREATE\",rejected=\"false\",type=\"admit\"} 1",
            "request_total{code=\"503\",name=\"w\",operation=\"CREATE\",rejected=\"false\",type=\"validating\"} 1",
            "rejection_count{error_type=\"no_error\",name=\"w\",operation=\"CREATE\",rejection_code=\"403\",type=\"admit\"} 1",
            "rejection_count{error_type=\"calling_webhook_error\",name=\"w\",operation=\"CREATE\",rejection_code=\"503\"",
            "fail_open_count{name=\"w\",type=\"validating\"} 1",
        ] {
            assert!(page.text.contains(line), "{line}: {}", page.text);
        }
    }
}
