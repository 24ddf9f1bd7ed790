//! apimachinery
