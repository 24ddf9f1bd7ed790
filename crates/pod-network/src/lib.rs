//! pod-network
