//! What happens in the cluster, as far as it may help a pod that found no node.

use std::sync::Arc;

use crate::devices::{DeviceClass, ResourceClaim, ResourceSlice};
use crate::storage::{Claim, Class, CsiNode, Volume};
use crate::types::{Node, Pod};

/// A change with the objects it is about.
#[derive(Clone, Debug)]
pub enum ClusterEvent {
    NodeAdded(Arc<Node>),
    NodeChanged {
        old: Arc<Node>,
        new: Arc<Node>,
    },
    /// A pod came to a node.
    PodPlaced(Arc<Pod>),
    /// A pod on a node changed its labels or asks for less.
    PodChanged {
        old: Arc<Pod>,
        new: Arc<Pod>,
    },
    /// A pod on a node ended or went away.
    PodGone(Arc<Pod>),
    ClaimChanged {
        old: Option<Arc<Claim>>,
        new: Arc<Claim>,
    },
    VolumeChanged(Arc<Volume>),
    ClassChanged(Arc<Class>),
    CsiNodeChanged(Arc<CsiNode>),
    /// A driver, or what it says of its free space.
    CsiDriverChanged,
    StorageCapacityChanged,
    VolumeDetached,
    ResourceClaimChanged {
        old: Option<Arc<ResourceClaim>>,
        new: Option<Arc<ResourceClaim>>,
    },
    ResourceSliceChanged(Arc<ResourceSlice>),
    DeviceClassChanged(Arc<DeviceClass>),
    NamespaceChanged,
}

/// Kinds of events, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u32);

impl Events {
    pub const NONE: Self = Self(0);
    pub const NODE_ADDED: Self = Self(1);
    pub const NODE_CHANGED: Self = Self(1 << 1);
    pub const POD_PLACED: Self = Self(1 << 2);
    pub const POD_CHANGED: Self = Self(1 << 3);
    pub const POD_GONE: Self = Self(1 << 4);
    pub const CLAIM: Self = Self(1 << 5);
    pub const VOLUME: Self = Self(1 << 6);
    pub const CLASS: Self = Self(1 << 7);
    pub const CSI_NODE: Self = Self(1 << 8);
    pub const CSI_DRIVER: Self = Self(1 << 9);
    pub const CAPACITY: Self = Self(1 << 10);
    pub const DETACHED: Self = Self(1 << 11);
    pub const RESOURCE_CLAIM: Self = Self(1 << 12);
    pub const RESOURCE_SLICE: Self = Self(1 << 13);
    pub const DEVICE_CLASS: Self = Self(1 << 14);
    pub const NAMESPACE: Self = Self(1 << 15);
    pub const ALL: Self = Self(u32::MAX);
    pub const NODE: Self = Self::NODE_ADDED.and(Self::NODE_CHANGED);
    pub const POD: Self = Self::POD_PLACED.and(Self::POD_CHANGED).and(Self::POD_GONE);

    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl ClusterEvent {
    pub fn kind(&self) -> Events {
        match self {
            Self::NodeAdded(_) => Events::NODE_ADDED,
            Self::NodeChanged { .. } => Events::NODE_CHANGED,
            Self::PodPlaced(_) => Events::POD_PLACED,
            Self::PodChanged { .. } => Events::POD_CHANGED,
            Self::PodGone(_) => Events::POD_GONE,
            Self::ClaimChanged { .. } => Events::CLAIM,
            Self::VolumeChanged(_) => Events::VOLUME,
            Self::ClassChanged(_) => Events::CLASS,
            Self::CsiNodeChanged(_) => Events::CSI_NODE,
            Self::CsiDriverChanged => Events::CSI_DRIVER,
            Self::StorageCapacityChanged => Events::CAPACITY,
            Self::VolumeDetached => Events::DETACHED,
            Self::ResourceClaimChanged { .. } => Events::RESOURCE_CLAIM,
            Self::ResourceSliceChanged(_) => Events::RESOURCE_SLICE,
            Self::DeviceClassChanged(_) => Events::DEVICE_CLASS,
            Self::NamespaceChanged => Events::NAMESPACE,
        }
    }

    /// Upstream's name for it, as metrics show it.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NodeAdded(_) => "NodeAdd",
            Self::NodeChanged { .. } => "NodeUpdate",
            Self::PodPlaced(_) => "AssignedPodAdd",
            Self::PodChanged { .. } => "AssignedPodUpdate",
            Self::PodGone(_) => "AssignedPodDelete",
            Self::ClaimChanged { .. } => "PersistentVolumeClaimUpdate",
            Self::VolumeChanged(_) => "PersistentVolumeUpdate",
            Self::ClassChanged(_) => "StorageClassUpdate",
            Self::CsiNodeChanged(_) => "CSINodeUpdate",
            Self::CsiDriverChanged => "CSIDriverUpdate",
            Self::StorageCapacityChanged => "CSIStorageCapacityUpdate",
            Self::VolumeDetached => "VolumeAttachmentDelete",
            Self::ResourceClaimChanged { .. } => "ResourceClaimUpdate",
            Self::ResourceSliceChanged(_) => "ResourceSliceUpdate",
            Self::DeviceClassChanged(_) => "DeviceClassUpdate",
            Self::NamespaceChanged => "NamespaceUpdate",
        }
    }
}
