//! Going back to an older release, as etcd has it: the cluster says that it will, and clients see the older version until it is cancelled.
//!
//! The data's form here is the same for all releases; what an older etcd reads are snapshots, which `etcdctl snapshot restore` makes a cluster of.

use bytes::Bytes;

use crate::engine::Transaction;
use crate::mutation::Mutation;
use crate::replication::member::Settings;
use crate::v3::frame;
use crate::v3::messages::{DowngradeRequest, DowngradeResponse};
use crate::v3::service::{STORAGE_VERSION, Service};
use crate::v3::status::{self, Status};

const TARGET: &[u8] = b"downgrade";

const VALIDATE: i32 = 0;
const ENABLE: i32 = 1;

/// The version to which the cluster goes back, if it does.
pub fn target(settings: &Settings) -> Option<String> {
    Some(String::from_utf8_lossy(settings.get(TARGET)?).into_owned())
}

/// The version of the cluster: the lowest that a member may have.
pub fn cluster_version(settings: &Settings) -> String {
    target(settings).unwrap_or_else(|| STORAGE_VERSION.to_owned())
}

/// A version without its last number.
fn short(version: &str) -> String {
    version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")
}

/// The version asked for, if the cluster may go back to it: the release before.
fn checked(request: &DowngradeRequest, settings: &Settings) -> Result<String, Status> {
    let numbers: Vec<Option<u32>> = request.version.split('.').map(|part| part.parse().ok()).collect();
    let (major, minor) = match numbers[..] {
        [Some(major), Some(minor)] | [Some(major), Some(minor), Some(_)] => (major, minor),
        _ => return Err(status::BAD_DOWNGRADE_FORMAT),
    };
    if target(settings).is_some() {
        return Err(status::DOWNGRADE_IN_PROGRESS);
    }
    if (major, minor) == (3, 5) { Ok("3.5.0".to_owned()) } else { Err(status::BAD_DOWNGRADE_TARGET) }
}

fn change(transaction: &mut Transaction<'_>, request: &DowngradeRequest) -> Result<(), Status> {
    let value = if request.action == ENABLE {
        Some(Bytes::from(checked(request, transaction.settings())?))
    } else {
        None
    };
    if value.is_some() || transaction.settings().contains_key(TARGET) {
        transaction.apply(Mutation::Setting { name: Bytes::from_static(TARGET), value });
    }
    Ok(())
}

/// Answers a request.
pub async fn answer(service: &Service, request: DowngradeRequest) -> Result<Bytes, Status> {
    // What it was when it was asked.
    let version = short(&cluster_version(&service.etcd.shared.read().settings));
    if request.action == VALIDATE {
        checked(&request, &service.etcd.shared.read().settings)?;
    } else {
        service.etcd.transact(|transaction| change(transaction, &request)).await?;
    }
    Ok(frame::framed(&DowngradeResponse { header: service.header(), version }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_release_before_can_be_gone_back_to_and_once() {
        let none = Settings::new();
        let under_way = Settings::from([(Bytes::from_static(TARGET), Bytes::from_static(b"3.5.0"))]);
        let cases = [
            (&none, "3.5", Ok("3.5.0".to_owned())),
            (&none, "3.5.0", Ok("3.5.0".to_owned())),
            (&none, "3.6", Err(status::BAD_DOWNGRADE_TARGET)),
            (&none, "3.7", Err(status::BAD_DOWNGRADE_TARGET)),
            (&none, "3.4.1", Err(status::BAD_DOWNGRADE_TARGET)),
            (&none, "older", Err(status::BAD_DOWNGRADE_FORMAT)),
            (&under_way, "3.5", Err(status::DOWNGRADE_IN_PROGRESS)),
        ];
        for (settings, version, expected) in cases {
            let request = DowngradeRequest { action: VALIDATE, version: version.to_owned() };
            assert_eq!(checked(&request, settings), expected, "{version}");
        }
        assert_eq!(
            (short(&cluster_version(&none)), short(&cluster_version(&under_way))),
            ("3.6".into(), "3.5".into())
        );
    }
}
