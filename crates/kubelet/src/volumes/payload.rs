//! Volumes made of files: configMap, secret, downwardAPI, and any mix of them with tokens in a projected volume.

use cri::BoxFuture;
use jiff::Timestamp;

use super::atomic::{self, File, Payload};
use super::memory::{self, Shape};
use super::objects::Kind;
use super::{Context, Mounted, VolumeError};
use crate::downward;
use crate::environment::Data;
use crate::pod::{DownwardSource, Item, Pod, ProjectedSource};

const DEFAULT_MODE: u32 = 0o644;

pub struct Source;

impl super::Source for Source {
    fn set_up<'a>(&'a self, context: &'a Context<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let volume = context.volume;
            let mut payload = Payload::new();
            let mut refresh_at = None;
            let plugin = if let Some(source) = &volume.config_map {
                let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
                let files =
                    keyed(context, Kind::ConfigMap, &source.name, &source.items, mode, source.optional)
                        .await?;
                merge(&mut payload, files)?;
                "configmap"
            } else if let Some(source) = &volume.secret {
                let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
                let files =
                    keyed(context, Kind::Secret, &source.secret_name, &source.items, mode, source.optional)
                        .await?;
                merge(&mut payload, files)?;
                "secret"
            } else if let Some(source) = &volume.downward_api {
                merge(
                    &mut payload,
                    downward_files(context, source, source.default_mode.unwrap_or(DEFAULT_MODE))?,
                )?;
                "downward-api"
            } else {
                let projected = volume.projected.as_ref();
                let mode = projected.and_then(|source| source.default_mode).unwrap_or(DEFAULT_MODE);
                for source in projected.iter().flat_map(|projected| &projected.sources) {
                    let (files, refresh) = projection(context, source, mode).await?;
                    merge(&mut payload, files)?;
                    refresh_at = match (refresh_at, refresh) {
                        (Some(known), Some(new)) => Some(Ord::min(known, new)),
                        (known, new) => known.or(new),
                    };
                }
                "projected"
            };
            let place = context.place(plugin)?;
            let group = context.group();
            let io = |source| VolumeError::io("cannot create", &place.path, source);
            let dir = match plugin {
                // As upstream: the one kind that is not meant to hold secrets is kept on the disk.
                "configmap" => place.parent.ensure(place.name, 0o755).map_err(io)?,
                _ => {
                    memory::ensure(&place.parent, place.name, Shape { mode: 0o755, group: None, size: None })
                        .map_err(io)?
                }
            };
            atomic::write(&dir, &payload, group)?;
            Ok(Mounted { refresh_at, read_only: true, ..Mounted::at(place.path) })
        })
    }
}

fn merge(payload: &mut Payload, files: Payload) -> Result<(), VolumeError> {
    for (path, file) in files {
        if payload.contains_key(&path) {
            return Err(VolumeError::Twice(path));
        }
        payload.insert(path, file);
    }
    Ok(())
}

async fn projection(
    context: &Context<'_>,
    source: &ProjectedSource,
    mode: u32,
) -> Result<(Payload, Option<Timestamp>), VolumeError> {
    if let Some(map) = &source.config_map {
        Ok((keyed(context, Kind::ConfigMap, &map.name, &map.items, mode, map.optional).await?, None))
    } else if let Some(secret) = &source.secret {
        Ok((
            keyed(context, Kind::Secret, &secret.secret_name, &secret.items, mode, secret.optional).await?,
            None,
        ))
    } else if let Some(downward) = &source.downward_api {
        Ok((downward_files(context, downward, mode)?, None))
    } else if let Some(wanted) = &source.service_account_token {
        let token = context.tokens.get(context.client, context.pod, wanted, context.now).await?;
        let uid = single_user(context.pod);
        // A token that only one user or the fsGroup can need is hidden from the others.
        let mode =
            if uid.is_some() || context.pod.spec.security_context.fs_group.is_some() { 0o600 } else { mode };
        let file = File { data: token.text.into_bytes(), mode, uid };
        Ok(([(wanted.path.clone(), file)].into(), Some(token.refresh_at)))
    } else if source.cluster_trust_bundle.is_some() {
        Err(VolumeError::Unsupported("projected clusterTrustBundle".into()))
    } else if source.pod_certificate.is_some() {
        Err(VolumeError::Unsupported("projected podCertificate".into()))
    } else {
        Ok((Payload::new(), None))
    }
}

/// The user that every container runs as, if it is one and known.
fn single_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec.security_context.run_as_user;
    let mut users = pod.containers().map(|(_, container)| container.security_context.run_as_user.or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

async fn keyed(
    context: &Context<'_>,
    kind: Kind,
    name: &str,
    items: &[Item],
    mode: u32,
    optional: Option<bool>,
) -> Result<Payload, VolumeError> {
    let optional = optional.unwrap_or(false);
    match context.objects.get(kind, &context.pod.metadata.namespace, name).await? {
        Some(data) => select(kind.name(), &data, items, mode, optional),
        None if optional => Ok(Payload::new()),
        None => Err(VolumeError::NotFound { kind: kind.name(), name: name.to_owned() }),
    }
}

/// The files of an object: every key, or the items asked for.
fn select(
    kind: &'static str,
    data: &Data,
    items: &[Item],
    mode: u32,
    optional: bool,
) -> Result<Payload, VolumeError> {
    if items.is_empty() {
        let file = |data: &Vec<u8>| File { data: data.clone(), mode, uid: None };
        return Ok(data.iter().map(|(key, data)| (key.clone(), file(data))).collect());
    }
    let mut payload = Payload::new();
    for item in items {
        match data.get(&item.key) {
            Some(data) => {
                let file = File { data: data.clone(), mode: item.mode.unwrap_or(mode), uid: None };
                payload.insert(item.path.clone(), file);
            }
            None if optional => {}
            None => return Err(VolumeError::NoKey { kind, key: item.key.clone() }),
        }
    }
    Ok(payload)
}

fn downward_files(context: &Context<'_>, source: &DownwardSource, mode: u32) -> Result<Payload, VolumeError> {
    let mut payload = Payload::new();
    for item in &source.items {
        let text = if let Some(field) = &item.field_ref {
            downward::field(context.pod, context.facts, &field.field_path)?
        } else if let Some(resource) = &item.resource_field_ref {
            downward::resource(context.pod, None, context.facts, resource)?
        } else {
            continue;
        };
        let file = File { data: text.into_bytes(), mode: item.mode.unwrap_or(mode), uid: None };
        payload.insert(item.path.clone(), file);
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_choose_rename_and_set_modes() {
        let data: Data = [("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())].into();
        let all = select("configmap", &data, &[], 0o444, false).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(all["a"].mode, 0o444);
        let items = [Item { key: "b".into(), path: "x/y".into(), mode: Some(0o400) }];
        let some = select("configmap", &data, &items, 0o444, false).unwrap();
        assert_eq!((some["x/y"].data.as_slice(), some["x/y"].mode), (&b"2"[..], 0o400));
        let missing = [Item { key: "c".into(), path: "c".into(), mode: None }];
        assert!(select("configmap", &data, &missing, 0o444, true).unwrap().is_empty());
        let error = select("secret", &data, &missing, 0o444, false).unwrap_err();
        assert_eq!(error.to_string(), "references non-existent secret key: c");
    }

    #[test]
    fn a_token_belongs_to_the_one_user_of_the_pod() {
        let pod = |spec: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap()
        };
        let one = pod(serde_json::json!({"securityContext": {"runAsUser": 7}, "containers": [{}, {}]}));
        assert_eq!(single_user(&one), Some(7));
        let two = pod(
            serde_json::json!({"securityContext": {"runAsUser": 7}, "containers": [{}, {"securityContext": {"runAsUser": 8}}]}),
        );
        assert_eq!(single_user(&two), None);
    }
}
