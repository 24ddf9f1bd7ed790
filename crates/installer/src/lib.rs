//! installer
