//! Who a process is and what it may: identities, namespaces, profiles, limits. Parts of sandboxes and of containers.

messages! {
    /// A number that may be absent.
    Int64Value { 1 value: int64 }
    /// The same without a sign.
    UInt64Value { 1 value: uint64 }

    /// A range of ids inside, and where it lies on the host.
    IdMapping { 1 host_id: uint32, 2 container_id: uint32, 3 length: uint32 }
    /// Whose users: 0 the pod's, 2 the node's.
    UserNamespace { 1 mode: int32, 2 uids: many(IdMapping), 3 gids: many(IdMapping) }
    /// With whom each namespace is shared: 0 pod, 1 container, 2 node, 3 the target.
    NamespaceOption {
        1 network: int32, 2 pid: int32, 3 ipc: int32, 4 target_id: text, 5 userns_options: one(UserNamespace),
    }
    /// A seccomp or AppArmor profile: 0 the runtime's, 1 none, 2 one of the node by name.
    SecurityProfile { 1 profile_type: int32, 2 localhost_ref: text }
    /// An SELinux label.
    SeLinuxOption { 1 user: text, 2 role: text, 3 r#type: text, 4 level: text }
    /// Changes of the capability set.
    Capability { 1 add_capabilities: texts, 2 drop_capabilities: texts, 3 add_ambient_capabilities: texts }

    /// cgroup values. Zero and empty leave a value as it is.
    LinuxContainerResources {
        1 cpu_period: int64, 2 cpu_quota: int64, 3 cpu_shares: int64,
        4 memory_limit_in_bytes: int64, 10 memory_swap_limit_in_bytes: int64, 5 oom_score_adj: int64,
        6 cpuset_cpus: text, 7 cpuset_mems: text, 8 hugepage_limits: many(HugepageLimit), 9 unified: map,
    }
    /// Huge pages of one size.
    HugepageLimit { 1 page_size: text, 2 limit: uint64 }
}
