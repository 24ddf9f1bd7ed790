//! Assets for keys and certificates: one per row of the table, so that each is made from exactly what it needs.

use std::sync::Arc;

use pki::table::{BUNDLES, CertSpec, INSTALL, KEYS};
use pki::{Algorithm, Facts, Pair, PrivateKey};

use crate::graph::{Asset, AssetError, AssetFile, Files, Inputs, Place};
use crate::install_config::InstallConfig;
use crate::nodes::Nodes;

/// The name of a row's asset.
pub fn asset_name(row: &str) -> String {
    format!("tls/{row}")
}

/// Path of a row's certificate.
pub fn certificate_path(row: &str) -> String {
    format!("tls/{row}.crt")
}

/// Path of a row's key.
pub fn key_path(row: &str) -> String {
    format!("tls/{row}.key")
}

/// Values of the placeholders in the table.
pub fn facts(config: &InstallConfig, nodes: &Nodes) -> Facts {
    let domain = config.cluster_domain();
    let names = nodes.etcd_nodes().flat_map(|n| [n.name.clone(), format!("{}.{domain}", n.name)]);
    Facts::default()
        .with("etcd_names", names.collect::<Vec<_>>())
        .with("etcd_ips", nodes.etcd_nodes().flat_map(|node| &node.addresses))
        .with("api_vips", &nodes.api_addresses)
        .with("service_ips", config.api_service_ips())
        .with("domain", [domain])
}

/// The kind of key that this installation uses.
pub fn algorithm(inputs: &Inputs<'_>) -> Result<Algorithm, AssetError> {
    Ok(serde_json::from_slice(inputs.file("key-algorithm", "key-algorithm.json")?)?)
}

/// Every asset of the table, of the bundles and of the bare keys.
pub fn assets(keys: Arc<KeyPool>) -> Vec<Asset> {
    let mut out = Vec::new();
    for row in INSTALL {
        let mut parents = vec!["key-algorithm".to_owned()];
        parents.extend(row.signer.map(asset_name));
        let placeholders = row.common_name.contains('{') || row.sans.iter().any(|san| san.contains('{'));
        if placeholders {
            parents.extend(["install-config".to_owned(), "nodes".to_owned()]);
        }
        let keys = keys.clone();
        out.push(Asset {
            name: asset_name(row.name),
            parents,
            about: row.purpose,
            place: Place::Internal,
            generate: Box::new(move |inputs| certificate(row, placeholders, &keys, inputs)),
        });
    }
    for bundle in BUNDLES {
        out.push(Asset {
            name: asset_name(bundle.name),
            parents: bundle.members.iter().map(|member| asset_name(member)).collect(),
            about: bundle.purpose,
            place: Place::Internal,
            generate: Box::new(move |inputs| {
                let mut text = String::new();
                for member in bundle.members {
                    text.push_str(&inputs.text(&asset_name(member), &certificate_path(member))?);
                }
                Ok(vec![AssetFile::public(certificate_path(bundle.name), text)])
            }),
        });
    }
    for (name, purpose) in KEYS {
        let keys = keys.clone();
        out.push(Asset {
            name: asset_name(name),
            parents: vec!["key-algorithm".to_owned()],
            about: purpose,
            place: Place::Internal,
            generate: Box::new(move |inputs| {
                let key = keys.take(algorithm(inputs)?)?;
                Ok(vec![
                    AssetFile::secret(key_path(name), key.to_pem()),
                    AssetFile::public(format!("tls/{name}.pub"), key.public().to_pem()),
                ])
            }),
        });
    }
    out
}

fn certificate(
    row: &CertSpec,
    placeholders: bool,
    keys: &KeyPool,
    inputs: &Inputs<'_>,
) -> Result<Files, AssetError> {
    let facts = if placeholders {
        let config = inputs.config()?;
        facts(config, &Nodes::parse(&inputs.text("nodes", "nodes.yaml")?, config)?)
    } else {
        Facts::default()
    };
    let request = row.request(&facts, inputs.now)?;
    let signer = row.signer.map(|name| pair(inputs, name)).transpose()?;
    let algorithm = algorithm(inputs)?;
    // A parent that changed without touching this certificate's words leaves it as it is.
    if let Some(previous) = inputs.previous.and_then(|files| pair_of(files, row.name).ok()) {
        let have = &previous.certificate;
        let same = have.subject == request.subject
            && have.sans == request.sans
            && have.usages == request.usages
            && have.is_valid_at(inputs.now)
            && previous.key.algorithm() == algorithm
            && have.is_signed_by(signer.as_ref().map_or(have, |signer| &signer.certificate));
        if same {
            return Ok(files_of(row.name, &previous));
        }
    }
    let key = keys.take(algorithm)?;
    let made = match signer {
        None => Pair::self_signed(&request, key)?,
        Some(signer) => signer.issue(&request, key)?,
    };
    Ok(files_of(row.name, &made))
}

fn files_of(name: &str, pair: &Pair) -> Files {
    vec![
        AssetFile::public(certificate_path(name), pair.certificate_pem()),
        AssetFile::secret(key_path(name), pair.key_pem()),
    ]
}

fn pair_of(files: &[AssetFile], name: &str) -> Result<Pair, AssetError> {
    let find = |path: String| {
        files
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.content.as_slice())
            .ok_or_else(|| AssetError::NoFile { asset: asset_name(name), path })
    };
    Ok(Pair::from_pem(find(certificate_path(name))?, find(key_path(name))?)?)
}

/// A row's pair, for those who are made from it.
pub fn pair(inputs: &Inputs<'_>, name: &str) -> Result<Pair, AssetError> {
    pair_of(inputs.files(&asset_name(name)), name)
}

/// Keys made ahead on all processors, because finding RSA primes is the longest work of an installation.
#[derive(Default)]
pub struct KeyPool {
    ready: std::sync::Mutex<Vec<(Algorithm, PrivateKey)>>,
}

impl KeyPool {
    /// Makes `count` keys on as many threads as there are processors.
    pub fn fill(&self, algorithm: Algorithm, count: usize) -> Result<(), AssetError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count.max(1));
        let left = std::sync::atomic::AtomicUsize::new(count);
        let take = || {
            use std::sync::atomic::Ordering::Relaxed;
            left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
        };
        std::thread::scope(|scope| {
            let work = || -> Result<(), AssetError> {
                while take() {
                    let key = PrivateKey::generate(algorithm)?;
                    self.lock().push((algorithm, key));
                }
                Ok(())
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Err(AssetError::Random)))
        })
    }

    fn take(&self, algorithm: Algorithm) -> Result<Arc<PrivateKey>, AssetError> {
        let mut ready = self.lock();
        if let Some(at) = ready.iter().position(|(kind, _)| *kind == algorithm) {
            return Ok(Arc::new(ready.swap_remove(at).1));
        }
        drop(ready);
        Ok(Arc::new(PrivateKey::generate(algorithm)?))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Algorithm, PrivateKey)>> {
        // A thread that failed while holding it left a list that is still whole.
        self.ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
