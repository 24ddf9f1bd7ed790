//! Pods' cgroups, where the runtime is another program: it puts containers into a group that has to be there, with the
//! pod's limits. The runtime of this process makes them itself.

use cgroups::{Cgroups, Limits};
use cri::LinuxContainerResources;
use tracing::warn;

use crate::pod::Pod;
use crate::{qos, resources};

pub struct PodGroups {
    cgroups: Cgroups,
    /// Under which all pods are; empty for the hierarchy's root.
    root: String,
}

impl PodGroups {
    pub fn new(root: &str) -> Self {
        let root = root.trim_matches('/');
        let root = if root.is_empty() { String::new() } else { format!("/{root}") };
        Self { cgroups: Cgroups::detect(), root }
    }

    /// The pod's group, as the runtime is told.
    pub fn of(&self, pod: &Pod) -> String {
        format!("{}{}", self.root, qos::cgroup_parent(pod))
    }

    /// Makes the pod's group with its limits. A host that does not let us is not a reason not to run the pod.
    pub fn make(&self, pod: &Pod, pids: i64) {
        let group = self.of(pod);
        let mut limits = Limits::of(&resources::of_pod(pod));
        limits.pids = Some(pids).filter(|pids| *pids > 0);
        let warnings = self.cgroups.create(&group).into_iter();
        for warning in warnings.chain(self.cgroups.apply(&group, &limits)) {
            warn!(pod = %pod.key(), warning, "the pod's cgroup is not as it should be");
        }
    }

    /// Changes limits of the pod's group.
    pub fn change(&self, pod: &Pod, values: &LinuxContainerResources) -> Result<(), String> {
        let warnings = self.cgroups.apply(&self.of(pod), &Limits::of(values));
        warnings.into_iter().next().map_or(Ok(()), Err)
    }

    /// Removes what is left of a pod's group, of whichever class it was. What still runs in it did not end with its
    /// sandbox, and does not outlive the pod.
    pub fn remove(&self, uid: &str) {
        for class in ["", "/burstable", "/besteffort"] {
            let group = format!("{}/kubepods{class}/pod{uid}", self.root);
            self.cgroups.kill(&group);
            self.cgroups.remove(&group);
        }
    }
}
