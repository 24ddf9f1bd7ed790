//! Which objects belong to an owner: adopted by label, released when the labels no longer fit.

use std::sync::Arc;

use client::{Error, Metadata};
use controller_runtime::{Context, Kind, PatchForm, Plan, Selector};
use serde::Deserialize;
use serde_json::json;

/// The objects that an owner has a say in.
#[derive(Debug)]
pub struct Claims<K> {
    /// It controls them, or is about to.
    pub mine: Vec<Arc<K>>,
    /// Those of `mine` that nothing controls so far.
    pub adopt: Vec<Arc<K>>,
    /// It controls them but its selector no longer fits.
    pub release: Vec<Arc<K>>,
}

impl<K> Default for Claims<K> {
    fn default() -> Self {
        Self { mine: Vec::new(), adopt: Vec::new(), release: Vec::new() }
    }
}

impl<K: Kind> Claims<K> {
    /// Looks for the objects of `owner`. Before anything is adopted the owner is read from the server: a cache that is
    /// behind could not know that the owner is going and has just let the objects go.
    pub async fn find<O: Kind>(context: &Context, owner: &O, selector: &Selector) -> Result<Self, Error> {
        let meta = owner.meta();
        let (mine, release) = context
            .caches
            .controlled_by::<K>(&meta.uid)
            .into_iter()
            .partition(|object| selector.matches(&object.meta().labels));
        let mut claims = Self { mine, adopt: Vec::new(), release };
        if meta.is_terminating() {
            claims.release.clear();
            return Ok(claims);
        }
        let mut orphans = context.caches.orphans_in::<K>(&meta.namespace);
        orphans.retain(|object| !object.meta().is_terminating() && selector.matches(&object.meta().labels));
        if !orphans.is_empty() && still_lives(context, owner).await? {
            claims.mine.extend(orphans.iter().cloned());
            claims.adopt = orphans;
        }
        Ok(claims)
    }

    /// Plans the adoptions and releases.
    pub fn settle<O: Kind>(&self, owner: &O, plan: &mut Plan) {
        for object in &self.adopt {
            let body = json!({"metadata": {"ownerReferences": [owner.controller_ref()]}});
            plan.patch_meta(&K::RESOURCE, object.meta(), None, PatchForm::Strategic, body).tolerant();
        }
        for object in self.release.iter().filter(|object| !object.meta().is_terminating()) {
            let body =
                json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": owner.meta().uid}]}});
            plan.patch_meta(&K::RESOURCE, object.meta(), None, PatchForm::Strategic, body).tolerant();
        }
        if !self.adopt.is_empty() || !self.release.is_empty() {
            plan.then();
        }
    }
}

/// Whether the owner is there and not going, asked of the server.
pub async fn still_lives<O: Kind>(context: &Context, owner: &O) -> Result<bool, Error> {
    #[derive(Deserialize)]
    struct Holder {
        metadata: Metadata,
    }
    let api = context.reader.api(&O::RESOURCE).within(&owner.meta().namespace);
    let found: Option<Holder> = api.find(&owner.meta().name).await?;
    Ok(found.is_some_and(|found| found.metadata.uid == owner.meta().uid && !found.metadata.is_terminating()))
}
