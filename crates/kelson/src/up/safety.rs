//! What a cluster does for its safety unless it is told not to: it keeps an account of who did what, and Secrets are
//! encrypted in the store.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context;
use apiserver::config::{AuditBatch, AuditConfig, AuditLog, AuditMode, AuditOutput};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Layout;

/// Bytes of the key that Secrets are encrypted with.
const KEY: usize = 32;

/// Who changed what, when, and who read Secrets or ran something in a pod: without bodies. The reading of the cluster's own
/// components, leases and events would drown the rest.
const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/metrics*", "/version", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*"]
- level: None
  resources: [{group: coordination.k8s.io, resources: [leases]}, {group: "", resources: [events]}, {group: events.k8s.io, resources: [events]}]
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]
  verbs: [get, list, watch]
- level: None
  userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]
  verbs: [get, list, watch]
- level: Metadata
"#;

/// The account, in files that only their owner reads: five of 64 MiB, the older ones packed.
pub fn audit(layout: &Layout) -> anyhow::Result<AuditConfig> {
    let directory = layout.audit();
    pki::files::create_private_dir(&directory)?;
    let log = AuditLog {
        max_size: 64,
        max_backup: 4,
        max_age_days: 30,
        compress: true,
        output: AuditOutput {
            mode: AuditMode::Batch,
            batch: AuditBatch {
                max_size: 400,
                max_wait: std::time::Duration::from_secs(1),
                ..AuditBatch::default()
            },
            truncate: None,
        },
        ..AuditLog::at(directory.join("audit.log"))
    };
    Ok(AuditConfig { policy: POLICY.to_owned(), log: Some(log), webhook: None })
}

/// How Secrets are stored. What was written before stays readable either way: without encryption as long as there is no key, with
/// it as long as the key is there; the next write of a Secret makes it what is wanted now.
pub fn encryption(key_file: &Path, wanted: bool) -> anyhow::Result<Option<String>> {
    let failed = || format!("the key of Secrets, {}, cannot be used", key_file.display());
    let known = pki::files::read_if_present(key_file).with_context(failed)?;
    let key = match (known, wanted) {
        (Some(text), _) => String::from_utf8_lossy(&text).trim().to_owned(),
        (None, false) => return Ok(None),
        (None, true) => {
            let mut key = [0; KEY];
            std::fs::File::open("/dev/urandom")
                .and_then(|mut random| random.read_exact(&mut key))
                .context("there is no randomness for the key of Secrets")?;
            let text = STANDARD.encode(key);
            // Without it the Secrets are lost: it is on the disk before the first of them is.
            pki::files::write_durably(key_file, text.as_bytes(), pki::files::SECRET).with_context(failed)?;
            text
        }
    };
    let decoded = STANDARD.decode(&key).map(|bytes| bytes.len()).unwrap_or(0);
    anyhow::ensure!(decoded == KEY, "{} does not hold {KEY} bytes in base64", key_file.display());
    let keyed = format!("{{secretbox: {{keys: [{{name: kelson, secret: {key:?}}}]}}}}");
    let providers = if wanted {
        format!("[{keyed}, {{identity: {{}}}}]")
    } else {
        format!("[{{identity: {{}}}}, {keyed}]")
    };
    Ok(Some(format!(
        "{{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, \
         resources: [{{resources: [secrets], providers: {providers}}}]}}"
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_key_is_made_once_for_the_owner_alone_and_read_ever_after() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secrets.key");
        assert_eq!(encryption(&file, false).unwrap(), None, "nothing is encrypted and nothing was");
        let on = encryption(&file, true).unwrap().unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(encryption(&file, true).unwrap().unwrap(), on, "the same key");
        assert!(on.find("secretbox") < on.find("identity"));
        let off = encryption(&file, false).unwrap().unwrap();
        assert!(off.find("identity") < off.find("secretbox"), "what is encrypted can still be read");
        std::fs::write(&file, "short").unwrap();
        assert!(encryption(&file, true).is_err());
    }
}
