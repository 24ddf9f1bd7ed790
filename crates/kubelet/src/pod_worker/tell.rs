//! Telling: the status to the API server, a report to whoever asks on this node, and the final deletion.

use super::*;

impl Worker {
    /// Computes the status, reports it, and sends it if it is new.
    pub(super) fn tell(&mut self, completed: bool, now: Timestamp, wake: &mut Option<Timestamp>) {
        let conditions = self.computed.as_ref().map(|known| known.conditions.clone()).unwrap_or_default();
        let computed = status::compute(&StatusView {
            pod: &self.order.pod,
            intent: &self.intent,
            runtime: &self.runtime,
            memory: &self.memory,
            completed,
            pending: self.order.pending.as_ref(),
            resized: self.order.resized,
            node: NodeFacts { addresses: &self.host.config.node_ips, runtime_name: &self.host.runtime_name },
            conditions: &conditions,
            now: whole_second(now),
        });
        let computed = match &self.computed {
            Some(known) if known.status == computed.status => known.clone(),
            _ => Arc::new(computed),
        };
        self.computed = Some(computed.clone());
        self.report.send_replace(self.make_report(&computed));
        if self.order.removed || self.sending {
            return;
        }
        if let Some(at) = self.send_after.filter(|at| *at > now) {
            return sooner(wake, Some(at));
        }
        if self.sent.as_ref() != Some(&computed.status) {
            return self.begin_send(computed);
        }
        let deleted = self.order.pod.metadata.deletion_timestamp.is_some() && !self.order.pod.is_static();
        if deleted && self.memory.finished && !self.deleting {
            self.deleting = true;
            let (host, pod) = (self.host.clone(), self.order.pod.clone());
            self.actions.push(Box::pin(async move {
                let options = DeleteOptions::of_uid(&pod.metadata.uid).grace(0);
                let api = host.config.client.api(&resources::PODS).within(&pod.metadata.namespace);
                Done::Deleted(api.delete(&pod.metadata.name, &options).await)
            }));
        }
    }

    pub(super) fn begin_send(&mut self, computed: Arc<Computed>) {
        let pod = self.order.pod.clone();
        let uid = match (pod.is_static(), &self.order.mirror) {
            (false, _) => pod.metadata.uid.clone(),
            (true, Some(mirror)) => mirror.clone(),
            // Nobody to tell yet: the mirror is made when the API server is there.
            (true, None) => return,
        };
        self.sending = true;
        let host = self.host.clone();
        self.actions.push(Box::pin(async move {
            let patch = json!({"metadata": {"uid": uid}, "status": computed.patch});
            let api = host.config.client.api(&resources::PODS).within(&pod.metadata.namespace);
            let result = api.patch_sub(&pod.metadata.name, "status", Patch::Strategic(&patch)).await;
            Done::StatusSent { status: computed, result }
        }));
    }

    pub(super) fn note_sent(
        &mut self,
        status: &Computed,
        result: Result<Value, client::Error>,
        now: Timestamp,
    ) {
        match result {
            Ok(_) => {
                self.sent = Some(status.status.clone());
                self.send_backoff = Backoff::default();
                self.send_after = None;
            }
            Err(error) if error.is_not_found() || error.is_conflict() => {
                // Gone, or another pod of the same name: there is nobody to tell. The watch will say which.
                self.sent = Some(status.status.clone());
            }
            Err(error) => {
                warn!(pod = %self.order.pod.key(), error = %telemetry::chain(&error), "cannot write the pod's status");
                self.send_backoff.next(now, now, STATUS_RETRY.0, STATUS_RETRY.1);
                self.send_after = Some(later(now, self.send_backoff.delay()));
            }
        }
    }

    pub(super) fn make_report(&self, computed: &Arc<Computed>) -> Report {
        let of = |one: &cri::ContainerStatus| (one.metadata.name.clone(), one.id.clone(), one.state);
        Report {
            pod: Some(self.order.pod.clone()),
            status: Some(computed.clone()),
            containers: self.runtime.containers.iter().map(of).collect(),
            sandbox: self.runtime.ready_sandbox().map(|one| one.id.clone()),
            log_paths: self
                .runtime
                .containers
                .iter()
                .map(|one| (one.id.clone(), one.log_path.clone()))
                .collect(),
            finished: self.memory.finished,
        }
    }
}
