//! Following `ignition.config`: fetched configs are laid over the one that names them, depth first.

use thiserror::Error;

use crate::resource::{self, Fetch, ResourceError};
use crate::types::{Config, References};
use crate::{ParseError, merge};

/// Configs that name configs that name configs: a loop ends here.
const DEPTH: usize = 16;

/// Why a config could not be completed.
#[derive(Debug, Error)]
pub enum ResolveError {
    /// Content was not to be had.
    #[error("cannot read the config that is referred to")]
    Resource(#[from] ResourceError),
    /// Content was no config.
    #[error("the config at {url} is unusable")]
    Parse {
        /// Where it came from.
        url: String,
        /// Why.
        #[source]
        source: ParseError,
    },
    /// A loop.
    #[error("configs refer to one another more than {DEPTH} deep")]
    Depth,
    /// Merging made something that is not a config.
    #[error("the merged config cannot be read")]
    Merge(#[from] serde_json::Error),
}

/// Fetches and merges until the config stands alone.
pub fn resolve(config: &Config, fetch: &mut Fetch<'_>) -> Result<Config, ResolveError> {
    resolve_at(config, fetch, 0)
}

fn resolve_at(config: &Config, fetch: &mut Fetch<'_>, depth: usize) -> Result<Config, ResolveError> {
    if depth > DEPTH {
        return Err(ResolveError::Depth);
    }
    if let Some(replacement) = config.ignition.config.replace.as_ref().filter(|r| r.source.is_some()) {
        return child(replacement, fetch, depth);
    }
    let mut whole = config.clone();
    whole.ignition.config = References::default();
    for reference in &config.ignition.config.merge {
        whole = merge(&whole, &child(reference, fetch, depth)?)?;
    }
    Ok(whole)
}

fn child(reference: &crate::Resource, fetch: &mut Fetch<'_>, depth: usize) -> Result<Config, ResolveError> {
    let text = resource::read(reference, fetch)?;
    let url = || reference.source.clone().unwrap_or_default();
    let (config, _) = crate::parse(&text).map_err(|source| ResolveError::Parse { url: url(), source })?;
    resolve_at(&config, fetch, depth + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{File, Resource};

    fn config(version: &str) -> Config {
        let mut config = Config::default();
        config.ignition.version = version.to_owned();
        config
    }

    #[test]
    fn children_are_laid_over_in_order_and_loops_end() {
        let mut child = config("3.2.0");
        child.storage.files.push(File::inline("/a", 0o600, b"child"));
        let mut pointer = config("3.1.0");
        pointer.storage.files.push(File::inline("/a", 0o644, b"pointer"));
        pointer.ignition.config.merge.push(Resource::at("https://server/config/master"));
        let text = serde_json::to_vec(&child).unwrap();
        let whole = resolve(&pointer, &mut |_| Ok(text.clone())).unwrap();
        assert_eq!(whole.storage.files, child.storage.files);
        assert!(whole.ignition.config.merge.is_empty());
        let looping = serde_json::to_vec(&pointer).unwrap();
        assert!(matches!(resolve(&pointer, &mut |_| Ok(looping.clone())), Err(ResolveError::Depth)));
    }
}
