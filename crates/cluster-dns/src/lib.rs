//! cluster-dns
