//! cri
