//! controller-runtime
