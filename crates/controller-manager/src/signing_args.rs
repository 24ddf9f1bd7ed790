//! The flags of `kelson kube-controller-manager` that say who signs certificates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use pki::Pair;

use crate::args::{StartError, read};
use crate::certificates::Signers;

/// One authority for all built-in signers, or one for each.
#[derive(Args, Clone, Debug, Default)]
pub struct SigningArgs {
    /// Signs certificate requests of all built-in signers
    #[arg(long)]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// Signs for kubernetes.io/kube-apiserver-client
    #[arg(long)]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// Signs for kubernetes.io/kube-apiserver-client-kubelet
    #[arg(long)]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// Signs for kubernetes.io/kubelet-serving
    #[arg(long)]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    /// Signs for kubernetes.io/legacy-unknown
    #[arg(long)]
    pub cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
}

fn pair(
    flag: &'static str,
    certificate: Option<&PathBuf>,
    key: Option<&PathBuf>,
) -> Result<Option<Arc<Pair>>, StartError> {
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            let pair = Pair::from_pem(&read(certificate)?, &read(key)?);
            let pair = pair.map_err(|source| StartError::Pki { path: certificate.clone(), source })?;
            Ok(Some(Arc::new(pair)))
        }
        _ => Err(StartError::HalfSigner { flag }),
    }
}

impl SigningArgs {
    /// The authorities; as with upstream it is one for all or some of their own, not both.
    pub fn signers(&self, longest: Duration) -> Result<Option<Signers>, StartError> {
        let all = pair(
            "cluster-signing",
            self.cluster_signing_cert_file.as_ref(),
            self.cluster_signing_key_file.as_ref(),
        )?;
        let client = pair(
            "cluster-signing-kube-apiserver-client",
            self.cluster_signing_kube_apiserver_client_cert_file.as_ref(),
            self.cluster_signing_kube_apiserver_client_key_file.as_ref(),
        )?;
        let kubelet_client = pair(
            "cluster-signing-kubelet-client",
            self.cluster_signing_kubelet_client_cert_file.as_ref(),
            self.cluster_signing_kubelet_client_key_file.as_ref(),
        )?;
        let kubelet_serving = pair(
            "cluster-signing-kubelet-serving",
            self.cluster_signing_kubelet_serving_cert_file.as_ref(),
            self.cluster_signing_kubelet_serving_key_file.as_ref(),
        )?;
        let legacy = pair(
            "cluster-signing-legacy-unknown",
            self.cluster_signing_legacy_unknown_cert_file.as_ref(),
            self.cluster_signing_legacy_unknown_key_file.as_ref(),
        )?;
        let duration = SignedDuration::try_from(longest).unwrap_or(SignedDuration::MAX);
        let own = [&client, &kubelet_client, &kubelet_serving, &legacy].iter().any(|own| own.is_some());
        match all {
            Some(_) if own => Err(StartError::BothSigners),
            Some(authority) => Ok(Some(Signers::one(authority, duration))),
            None if own => Ok(Some(Signers { client, kubelet_client, kubelet_serving, legacy, duration })),
            None => Ok(None),
        }
    }
}
