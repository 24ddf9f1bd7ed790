//! What operators share.

pub mod mapper;
