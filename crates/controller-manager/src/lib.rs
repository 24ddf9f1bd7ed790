//! controller-manager
